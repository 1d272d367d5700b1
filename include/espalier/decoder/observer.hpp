// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/statistics.cpp
#pragma once

#include <concepts>

#include "espalier/decoder/round.hpp"

namespace espalier {

//! Is told about every round after it is committed: for streaming text, statistics, pictures. Who calls step() may also
//! show it the steps that have read a part of a prompt and committed nothing; generate() does not.
//!
//! Minimal definition
//!   observer(const round_record&)
//! Models
//!   statistics, tree_recorder, any lambda
template <class ObserverT>
concept Observer = std::invocable<ObserverT&, const round_record&>;

//! Tells several observers, in order.
template <Observer... ObserversT>
auto observe_all(ObserversT&... observers) {
  return [&observers...](const round_record& r) { (observers(r), ...); };
}

}  // namespace espalier
