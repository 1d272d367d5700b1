// SPDX-License-Identifier: BSL-1.0
// Tested by tests/processor/processors.cpp
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/processor.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/require_token.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! A token, and the number that is added to its logit; minus infinity forbids the token.
struct token_bias {
  token_id token = 0;
  double bias = 0;
};

//! Adds a number to the logits of some tokens: z'(t) = z(t) + bias(t).
//!
//! Complexity  process: O(biases)
//! Law         as Processor
//! Errors      input_error for a token outside the vocabulary; option_error for a bias that is neither minus infinity
//!             nor from -1e9 to 1e9
//! Source      logit_bias of the OpenAI API, without its bounds of -100 and 100
class logit_bias {
 public:
  logit_bias() = default;
  logit_bias(std::vector<token_bias> biases, std::int32_t vocab_size) : biases_(std::move(biases)) {
    for (const token_bias& b : biases_) {
      detail::require_known_token("logit_bias", b.token, vocab_size);
      if (b.bias == -std::numeric_limits<double>::infinity()) continue;
      if (!(std::abs(b.bias) <= 1e9)) {
        raise<option_error>("the bias of token ", b.token, " is ", b.bias,
                            "; it must be minus infinity, or lie between -1e9 and 1e9.");
      }
    }
  }

  void begin(std::span<const token_id>) {}
  void commit(std::span<const token_id>) {}
  bool idle() const { return biases_.empty(); }

  template <class NumberT>
  void process(std::span<const token_id>, std::span<NumberT> logits) {
    for (const token_bias& b : biases_) {
      const auto t = static_cast<std::size_t>(b.token);
      if (t < logits.size()) logits[t] += static_cast<NumberT>(b.bias);
    }
  }

  //! Adds to `list` the changes that process() would make to the row, for processing on the device.
  template <class ChangesT>
  void changes(std::span<const token_id>, ChangesT& list) {
    for (const token_bias& b : biases_)
      list.add(b.token, b.bias);
  }

  bool allows(std::span<const token_id>, token_id token) {
    for (const token_bias& b : biases_) {
      if (b.token == token && std::isinf(b.bias)) return false;
    }
    return true;
  }

 private:
  std::vector<token_bias> biases_;
};

static_assert(Processor<logit_bias> && detail::HasIdle<logit_bias> && detail::HasAllows<logit_bias>);

}  // namespace espalier
