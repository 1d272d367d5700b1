// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/concepts/constraint.hpp"
#include "espalier/core/token.hpp"

namespace bench {

//! A constraint whose masks cost no time to find: three tokens of four are allowed, others after each token. So the
//! extra cost of a text is the cost of masks, whatever constraint finds them.
class three_of_four {
 public:
  using state_type = std::int32_t;

  explicit three_of_four(std::int32_t vocab) {
    for (std::uint32_t forbidden = 0; forbidden < 4; ++forbidden)
      masks_.emplace_back((static_cast<std::size_t>(vocab) + 31) / 32, ~(0x11111111U << forbidden));
  }

  state_type start() const { return 0; }
  state_type advance(state_type state, espalier::token_id) const { return (state + 1) % 4; }
  std::span<const std::uint32_t> allowed(state_type state) const { return masks_[static_cast<std::size_t>(state)]; }

 private:
  std::vector<std::vector<std::uint32_t>> masks_;
};

static_assert(espalier::Constraint<three_of_four>);

}  // namespace bench
