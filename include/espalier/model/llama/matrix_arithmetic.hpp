// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>

#include "espalier/core/option.hpp"

namespace espalier {

//! How quantised weights are multiplied.
enum class matrix_arithmetic { exact, integer };

template <>
inline constexpr std::array known_values<matrix_arithmetic> = {
    known_value<matrix_arithmetic>{matrix_arithmetic::exact, "exact", "as the floats that they mean"},
    known_value<matrix_arithmetic>{matrix_arithmetic::integer, "integer", "with activations rounded to 8 bits"}};

}  // namespace espalier
