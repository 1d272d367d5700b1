// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/quantised_backend.cpp
#pragma once

#include <array>

#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/model/files/weight_storage.hpp"

namespace espalier {

//! The way in which products with weights are computed: as floats, or as integers, with activations rounded to 16 bits
//! and weights to 8 bits, each with a scale for every row. It has a header of its own because programs that read it as
//! an option, such as programs for the device, must not include the host's kernels.
enum class matrix_arithmetic { exact, integer };

template <>
inline constexpr std::array known_values<matrix_arithmetic> = {
    known_value<matrix_arithmetic>{matrix_arithmetic::exact, "exact", "with the floats that weights mean"},
    known_value<matrix_arithmetic>{matrix_arithmetic::integer, "integer",
                                   "as integers: weights of 8 bits, activations of 16"}};

//! Returns the form in which matrices are held for products of this arithmetic: i8_rows for integers, else `weights`.
//!
//! Errors      option_error for integers if `weights` is neither i8_rows, as_stored nor fastest
inline weight_storage storage_for(matrix_arithmetic arithmetic, weight_storage weights) {
  if (arithmetic == matrix_arithmetic::exact) return weights;
  using enum weight_storage;
  if (weights != as_stored && weights != fastest && weights != i8_rows)
    raise<option_error>("option weights is ", name_of(weights),
                        ", but must be as-stored, fastest or i8-rows where arithmetic is integer.");
  return weight_storage::i8_rows;
}

}  // namespace espalier
