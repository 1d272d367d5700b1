// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/states.cpp
#pragma once

#include <span>

namespace espalier {

//! The state of a draft model after one token of the text.
template <class NumberT>
struct model_state {
  std::span<const NumberT>
      row{};  //!< [vocab] the distribution that the next token is drawn from; empty if it is not known
  std::span<const float> hidden{};  //!< [hidden_size] the last hidden state; empty if the model keeps none
};

}  // namespace espalier
