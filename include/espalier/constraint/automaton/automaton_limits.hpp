// SPDX-License-Identifier: BSL-1.0
// Tested by tests/constraint/regular_expression.cpp
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/core/error.hpp"

namespace espalier {

//! Error: a call of a constraint would take more steps than it may. What it has found so far is kept, so that a call
//! that may take more steps goes on from there.
struct steps_error : input_error {
  using input_error::input_error;
};

//! Limits of an automaton, all its copies together.
struct automaton_limits {
  //! Steps of one call: about as many bytes as it follows, times the states of the written-out pattern that it is in at
  //! a time. A hundred million take a second or so.
  std::int64_t steps = std::int64_t{1} << 27;
  std::size_t bytes = std::size_t{256} << 20;  //!< of the states that texts have reached
};

}  // namespace espalier
