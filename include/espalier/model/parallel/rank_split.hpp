// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>

#include "espalier/core/option.hpp"

namespace espalier {

//! How matrices are divided over ranks.
enum class rank_split {
  outputs,  //!< all by outputs: every sum has the order that it has on one rank, and so the bits
  sums      //!< those after attention and in the MLP's end by inputs: fewer bytes, sums added in the order of ranks
};
template <>
inline constexpr std::array known_values<rank_split> = {
    known_value<rank_split>{rank_split::outputs, "outputs", "all by outputs, with the bits of one rank"},
    known_value<rank_split>{rank_split::sums, "sums", "by inputs where that saves bytes"}};

}  // namespace espalier
