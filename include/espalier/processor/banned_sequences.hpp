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

//! Forbids every token that would complete one of these sequences, wherever the sequence begins, even in the prompt. To
//! ban a string, give the tokens that it is made of; the same string in other tokens is another sequence.
//!
//! Complexity  process: O(tokens of all sequences)
//! Law         as Processor
//! Errors      input_error for an empty sequence, and for a token outside the vocabulary
//! Source      bad_words_ids of transformers
class banned_sequences {
 public:
  using sequence = std::vector<token_id>;

  banned_sequences() = default;
  banned_sequences(std::vector<sequence> sequences, std::int32_t vocab_size) : sequences_(std::move(sequences)) {
    for (const sequence& s : sequences_) {
      if (s.empty()) raise<input_error>("a banned sequence is empty: it needs at least one token.");
      for (const token_id t : s)
        detail::require_known_token("a banned sequence", t, vocab_size);
      longest_ = (std::max)(longest_, s.size());
    }
  }

  bool idle() const { return sequences_.empty(); }

  void begin(std::span<const token_id> tokens) {
    end_.clear();
    commit(tokens);
  }

  void commit(std::span<const token_id> tokens) {
    if (idle()) return;
    const std::size_t kept = longest_ - 1;
    end_.insert(end_.end(), tokens.end() - static_cast<std::ptrdiff_t>((std::min)(tokens.size(), kept)), tokens.end());
    if (end_.size() > kept) end_.erase(end_.begin(), end_.end() - static_cast<std::ptrdiff_t>(kept));
  }

  template <class NumberT>
  void process(std::span<const token_id> path, std::span<NumberT> logits) {
    for (const sequence& s : sequences_) {
      const auto t = static_cast<std::size_t>(s.back());
      if (t < logits.size() && would_complete(s, path)) logits[t] = -std::numeric_limits<NumberT>::infinity();
    }
  }

  //! Adds to `list` the changes that process() would make to the row, for processing on the device.
  template <class ChangesT>
  void changes(std::span<const token_id> path, ChangesT& list) {
    for (const sequence& s : sequences_) {
      if (would_complete(s, path)) list.forbid(s.back());
    }
  }

  bool allows(std::span<const token_id> path, token_id token) {
    return std::none_of(sequences_.begin(), sequences_.end(),
                        [&](const sequence& s) { return s.back() == token && would_complete(s, path); });
  }

 private:
  // True if text and path together end with all of the sequence but its last token.
  bool would_complete(const sequence& s, std::span<const token_id> path) const {
    const std::size_t n = s.size() - 1;
    if (n > end_.size() + path.size()) return false;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t back = n - i;  // distance from the end
      const token_id t = back <= path.size() ? path[path.size() - back] : end_[end_.size() + path.size() - back];
      if (t != s[i]) return false;
    }
    return true;
  }

  std::vector<sequence> sequences_;
  std::size_t longest_ = 1;
  std::vector<token_id> end_;  // the last tokens of the text, as many as a sequence needs
};

static_assert(Processor<banned_sequences> && detail::HasIdle<banned_sequences> && detail::HasAllows<banned_sequences>);

}  // namespace espalier
