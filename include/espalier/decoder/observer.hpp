// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/statistics.cpp
#pragma once

#include <concepts>

#include "espalier/decoder/round.hpp"

namespace espalier {

//! A function that is told about every round after its commit: for streaming text, statistics, pictures. A caller of
//! step() may also tell it about steps that have read a part of a prompt and committed nothing; generate() does not.
//!
//! Minimal definition
//!   observer(const round_record&)
//! Models
//!   statistics, tree_recorder, any lambda
template <class ObserverT>
concept Observer = std::invocable<ObserverT&, const round_record&>;

//! Returns an observer that tells several others, in order. It keeps them by reference.
template <Observer... ObserversT>
auto observe_all(ObserversT&... observers) {
  return [&observers...](const round_record& r) { (observers(r), ...); };
}

}  // namespace espalier
