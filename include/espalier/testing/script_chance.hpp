// SPDX-License-Identifier: BSL-1.0
// Tested by tests/tree_policy/delayed.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"

namespace espalier {

//! Chance from given numbers, the script: each call takes the next number, whatever its key. It replays the decisions
//! of another implementation, and lets a test choose what happens.
//!
//! Errors      input_error when the script has ended
class script_chance {
 public:
  //! Keeps a view of the numbers, each in [0, 1); they must live as long as the chance.
  explicit script_chance(std::span<const double> uniforms) : uniforms_(uniforms) {}

  bool accept(double p, double q, chance_key = {}) { return next() * q < p; }

  template <Weights WeightsT>
  std::int32_t pick(const WeightsT& weights, chance_key = {}) {
    return detail::categorical(weights, next());
  }

  std::int32_t index(std::int32_t n, chance_key = {}) {
    const auto i = static_cast<std::int32_t>(next() * n);
    return i < n ? i : n - 1;
  }

  //! Number of uniform numbers used so far.
  std::size_t used() const { return used_; }

 private:
  double next() {
    if (used_ == uniforms_.size()) raise<input_error>("the script has ended: it holds ", uniforms_.size(), " numbers.");
    return uniforms_[used_++];
  }

  std::span<const double> uniforms_;
  std::size_t used_ = 0;
};

static_assert(Chance<script_chance>);

}  // namespace espalier
