// SPDX-License-Identifier: BSL-1.0
// Tested by tests/processor/processors.cpp
#pragma once

#include <algorithm>
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

//! Forbids the tokens that end a text until `length` tokens are written after the prompt.
//!
//! Complexity  process: O(ends)
//! Law         as Processor
//! Errors      option_error for a negative length; input_error for a token outside the vocabulary
//! Source      min_tokens of vLLM, min_new_tokens of transformers
class minimum_length {
 public:
  minimum_length() = default;
  minimum_length(std::int32_t length, std::vector<token_id> ends, std::int32_t vocab_size)
      : length_(length), ends_(std::move(ends)) {
    require_option("minimum_length", length, 0, (std::numeric_limits<std::int32_t>::max)());
    for (const token_id t : ends_)
      detail::require_known_token("minimum_length", t, vocab_size);
  }

  void begin(std::span<const token_id>) { written_ = 0; }
  void commit(std::span<const token_id> tokens) { written_ += tokens.size(); }
  //! True if the text is long enough, or no token ends it.
  bool idle() const { return ends_.empty() || is_reached(0); }

  template <class NumberT>
  void process(std::span<const token_id> path, std::span<NumberT> logits) {
    if (is_reached(path.size())) return;
    for (const token_id end : ends_) {
      const auto t = static_cast<std::size_t>(end);
      if (t < logits.size()) logits[t] = -std::numeric_limits<NumberT>::infinity();
    }
  }

  //! Adds to `list` the changes that process() would make to the row, for processing on the device.
  template <class ChangesT>
  void changes(std::span<const token_id> path, ChangesT& list) {
    if (is_reached(path.size())) return;
    for (const token_id end : ends_)
      list.forbid(end);
  }

  bool allows(std::span<const token_id> path, token_id token) {
    return is_reached(path.size()) || std::find(ends_.begin(), ends_.end(), token) == ends_.end();
  }

 private:
  bool is_reached(std::size_t n) const { return written_ + n >= static_cast<std::size_t>(length_); }

  std::int32_t length_ = 0;
  std::vector<token_id> ends_;
  std::size_t written_ = 0;
};

static_assert(Processor<minimum_length> && detail::HasIdle<minimum_length> && detail::HasAllows<minimum_length>);

}  // namespace espalier
