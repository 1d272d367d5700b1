// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>

#include "espalier/core/option.hpp"

namespace espalier {

//! What each rank is given of the logits.
enum class rank_logits {
  rows,   //!< whole rows, for every verifier
  maxima  //!< of each rank's part of the vocabulary the greatest, and minus infinity for all else: for `greedy` alone
};
template <>
inline constexpr std::array known_values<rank_logits> = {
    known_value<rank_logits>{rank_logits::rows, "rows", "whole rows"},
    known_value<rank_logits>{rank_logits::maxima, "maxima",
                             "the greatest of each rank's part, for greedy verification"}};

}  // namespace espalier
