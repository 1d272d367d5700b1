// SPDX-License-Identifier: BSL-1.0
// Tested by tests/processor/processors.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/processor.hpp"
#include "espalier/core/require_token.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! Makes the written text begin with these tokens: in the row that one of them is drawn from, all other tokens are
//! forbidden.
//!
//! Complexity  process: one pass over the row, none once the tokens are written
//! Law         as Processor
//! Errors      input_error for a token outside the vocabulary
//! Source      forced_decoder_ids of transformers
class forced_tokens {
 public:
  forced_tokens() = default;
  forced_tokens(std::vector<token_id> tokens, std::int32_t vocab_size) : tokens_(std::move(tokens)) {
    for (const token_id t : tokens_)
      detail::require_known_token("forced_tokens", t, vocab_size);
  }

  void begin(std::span<const token_id>) { written_ = 0; }
  void commit(std::span<const token_id> tokens) { written_ += tokens.size(); }
  //! True if all of the tokens are written, or there are none.
  bool idle() const { return written_ >= tokens_.size(); }

  template <class NumberT>
  void process(std::span<const token_id> path, std::span<NumberT> logits) {
    if (written_ + path.size() >= tokens_.size()) return;
    const auto next = static_cast<std::size_t>(tokens_[written_ + path.size()]);
    for (std::size_t t = 0; t < logits.size(); ++t)
      if (t != next) logits[t] = -std::numeric_limits<NumberT>::infinity();
  }

  //! Adds to `list` the changes that process() would make to the row, for processing on the device.
  template <class ChangesT>
  void changes(std::span<const token_id> path, ChangesT& list) {
    if (written_ + path.size() < tokens_.size()) list.allow_only(tokens_[written_ + path.size()]);
  }

  bool allows(std::span<const token_id> path, token_id token) {
    return written_ + path.size() >= tokens_.size() || tokens_[written_ + path.size()] == token;
  }

  std::optional<token_id> only(std::span<const token_id> path) {
    if (written_ + path.size() >= tokens_.size()) return std::nullopt;
    return tokens_[written_ + path.size()];
  }

 private:
  std::vector<token_id> tokens_;
  std::size_t written_ = 0;
};

static_assert(Processor<forced_tokens> && detail::HasIdle<forced_tokens> && detail::HasAllows<forced_tokens> &&
              detail::HasOnly<forced_tokens>);

}  // namespace espalier
