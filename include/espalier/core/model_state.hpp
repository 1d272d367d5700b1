// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <span>

namespace espalier {

//! What a draft model says after one token of the text.
template <class NumberT>
struct model_state {
  std::span<const NumberT>
      row{};  //!< [vocab] the distribution of the next token, as it is drawn from; empty: not known
  std::span<const float> hidden{};  //!< [hidden_size] the last hidden state; empty where the model keeps none
};

}  // namespace espalier
