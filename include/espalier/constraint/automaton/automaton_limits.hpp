// SPDX-License-Identifier: BSL-1.0
// Tested by tests/constraint/regular_expression.cpp
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/core/error.hpp"

namespace espalier {

//! Error: a call of a constraint would take more steps than it may. The states found so far are kept, so that a later
//! call with a larger limit goes on from there.
struct steps_error : input_error {
  using input_error::input_error;
};

//! Limits of an automaton, in common to all its copies.
struct automaton_limits {
  //! Most steps of one call. Reading a byte takes one step if the next state is known, else about one step for each
  //! state of the pattern that the text may be in. A hundred million steps take a second or so.
  std::int64_t steps = std::int64_t{1} << 27;
  std::size_t bytes = std::size_t{256} << 20;  //!< most bytes of memory for the states that texts have reached
};

}  // namespace espalier
