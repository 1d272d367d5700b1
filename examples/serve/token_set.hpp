// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/concepts/constraint.hpp"
#include "espalier/core/token.hpp"

namespace serve {

//! The constraint that allows the same tokens at every place of a text. All of them are at least 0.
class token_set {
 public:
  using state_type = bool;  // whether all tokens so far were allowed

  explicit token_set(std::span<const espalier::token_id> tokens) {
    for (const espalier::token_id token : tokens) {
      const auto t = static_cast<std::size_t>(token);
      if (t / 32 >= bits_.size()) bits_.resize(t / 32 + 1, 0);
      bits_[t / 32] |= std::uint32_t{1} << t % 32;
    }
  }

  state_type start() const { return true; }
  state_type advance(state_type state, espalier::token_id token) const {
    const auto t = static_cast<std::size_t>(token);
    return state && t / 32 < bits_.size() && (bits_[t / 32] >> t % 32 & 1U) != 0;
  }
  std::span<const std::uint32_t> allowed(state_type state) const {
    if (!state) return {};
    return bits_;
  }

 private:
  std::vector<std::uint32_t> bits_;
};

static_assert(espalier::Constraint<token_set>);

}  // namespace serve
