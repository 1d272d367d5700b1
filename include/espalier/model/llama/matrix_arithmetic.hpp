// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/quantised_backend.cpp
#pragma once

#include <array>

#include "espalier/core/option.hpp"

namespace espalier {

//! How products with quantised weights are computed. It has a header of its own because programs that read it as an
//! option, those for the device among them, must not include the host's kernels.
enum class matrix_arithmetic { exact, integer };

template <>
inline constexpr std::array known_values<matrix_arithmetic> = {
    known_value<matrix_arithmetic>{matrix_arithmetic::exact, "exact", "as the floats that they mean"},
    known_value<matrix_arithmetic>{matrix_arithmetic::integer, "integer", "with activations rounded to 8 bits"}};

}  // namespace espalier
