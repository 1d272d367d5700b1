// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/status.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/decoder/stop.hpp"

namespace espalier {

//! The text of one sequence as it is committed, and why it ended.
//!
//! Spans of the text are valid until the next begin().
//!
//! Law         text() only grows; its last token is pending: chosen, but not in the cache
class session {
 public:
  //! Context is the most tokens that the cache can hold. The prompt may be a part of text().
  //!
  //! Errors      input_error for an empty prompt, one that leaves no room to write, or a token outside the vocabulary;
  //!             option_error for max_tokens below 1. The text that was there before then still stands
  void begin(std::span<const token_id> prompt, stop_conditions stop, std::int32_t context, std::int32_t vocab_size) {
    require_option("max_tokens", stop.max_tokens, 1, (std::numeric_limits<std::int32_t>::max)());
    if (prompt.empty())
      raise<input_error>("the prompt is empty; it needs at least one token, such as the model's first.");
    if (static_cast<std::int64_t>(prompt.size()) >= context) {
      raise<input_error>("a prompt of ", prompt.size(), " tokens leaves no room to write in a context of ", context,
                         ".");
    }
    require_tokens("prompt", prompt, vocab_size);
    require_tokens("stop tokens", stop.tokens, vocab_size);
    search_ = stop_string_search(stop.strings);
    stop_ = std::move(stop);
    context_ = context;
    std::vector<token_id> text;
    text.reserve((std::min)(static_cast<std::size_t>(context) + 1, prompt.size() + (std::size_t{1} << 20)));
    text.assign(prompt.begin(), prompt.end());
    text_.swap(text);
    prompt_size_ = text_.size();
    round_ = 0;
    state_ = status::running;
  }

  std::span<const token_id> text() const { return text_; }
  //! What was written after the prompt.
  std::span<const token_id> written() const { return text().subspan(prompt_size_); }
  status state() const { return state_; }
  bool running() const { return state_ == status::running; }
  //! Rounds committed so far.
  std::int32_t round() const { return round_; }
  //! Whether it waits for a stop string, and so needs the text of every token.
  bool reads_pieces() const { return !stop_.strings.empty(); }
  //! Tokens that may still be written.
  std::int32_t left() const {
    return static_cast<std::int32_t>(
        (std::min)(static_cast<std::int64_t>(room()), stop_.max_tokens - static_cast<std::int64_t>(written().size())));
  }
  //! Tokens that still fit the context.
  std::int32_t room() const { return context_ - static_cast<std::int32_t>(text_.size()); }

  //! What the session takes of a verdict: all up to the first stop condition. `piece_of(token)` gives a token's text.
  //! Nothing has changed until commit(): a round may be given up in between.
  template <class PieceT>
  verdict admit(tree_view tree, verdict v, const PieceT& piece_of) {
    search_.take_back();
    admitted_state_ = status::running;
    const std::int32_t n = tree.depth[v.accepted] + 1;
    std::int32_t kept = 0;
    while (kept < n && admitted_state_ == status::running) {
      ++kept;
      const token_id token = kept < n ? tree.token[tree.ancestor_at(v.accepted, kept)] : v.token;
      admitted_state_ = state_after(token, piece_of(token), kept);
    }
    return cut(tree, v, kept);
  }

  //! Appends the verdict that was admitted last.
  void commit(tree_view tree, verdict admitted) {
    append_committed(text_, tree, admitted);
    search_.keep();
    state_ = admitted_state_;
    ++round_;
  }

 private:
  static void require_tokens(std::string_view what, std::span<const token_id> tokens, std::int32_t vocab_size) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0 || tokens[i] >= vocab_size) {
        raise<input_error>("token ", i, " of the ", what, " is ", tokens[i], ", but the vocabulary ends at ",
                           vocab_size - 1, ".");
      }
    }
  }

  // After the n-th token of a round.
  status state_after(token_id token, std::string_view piece, std::int32_t n) {
    const bool is_stop_token = std::find(stop_.tokens.begin(), stop_.tokens.end(), token) != stop_.tokens.end();
    if (is_stop_token) return status::stop_token;
    if (search_.push(piece)) return status::stop_string;
    if (static_cast<std::int64_t>(written().size()) + n >= stop_.max_tokens) return status::length;
    return room() <= n ? status::context_full : status::running;
  }

  std::vector<token_id> text_;
  std::size_t prompt_size_ = 0;
  std::int32_t context_ = 0;
  std::int32_t round_ = 0;
  status state_ = status::idle;
  status admitted_state_ = status::idle;
  stop_conditions stop_;
  stop_string_search search_;
};

}  // namespace espalier
