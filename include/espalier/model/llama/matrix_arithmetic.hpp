// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/quantised_backend.cpp
#pragma once

#include <array>

#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/model/files/weight_storage.hpp"

namespace espalier {

//! How products with weights are computed: as floats, or as integers, with activations rounded to 16 bits and weights
//! to 8, with one scale a row of either. It has a header of its own because programs that read it as an
//! option, those for the device among them, must not include the host's kernels.
enum class matrix_arithmetic { exact, integer };

template <>
inline constexpr std::array known_values<matrix_arithmetic> = {
    known_value<matrix_arithmetic>{matrix_arithmetic::exact, "exact", "with the floats that weights mean"},
    known_value<matrix_arithmetic>{matrix_arithmetic::integer, "integer",
                                   "as integers: weights of 8 bits, activations of 16"}};

//! Returns the form in which matrices are held that are multiplied so: i8_rows for products of integers, otherwise the
//! form that is asked for.
//!
//! Errors      option_error for products of integers with weights in another form than i8_rows, or as_stored or
//!             fastest, which name none
inline weight_storage storage_for(matrix_arithmetic arithmetic, weight_storage weights) {
  if (arithmetic == matrix_arithmetic::exact) return weights;
  using enum weight_storage;
  if (weights != as_stored && weights != fastest && weights != i8_rows)
    raise<option_error>("option weights is ", name_of(weights),
                        ", but must be as-stored, fastest or i8-rows where arithmetic is integer.");
  return weight_storage::i8_rows;
}

}  // namespace espalier
