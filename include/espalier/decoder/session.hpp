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
//! Law         text() only grows; its last token is pending: chosen, but not in the cache
class session {
 public:
  //! Context is the most tokens that the cache can hold.
  //!
  //! Errors      input_error for an empty prompt, one that leaves no room to write, or a token outside the vocabulary;
  //!             option_error for max_tokens below 1
  void begin(std::span<const token_id> prompt, stop_conditions stop, std::int32_t context, std::int32_t vocab_size) {
    require_option("max_tokens", stop.max_tokens, 1, (std::numeric_limits<std::int32_t>::max)());
    if (prompt.empty())
      raise<input_error>("the prompt is empty; it needs at least one token, such as the model's first.");
    if (static_cast<std::int64_t>(prompt.size()) >= context) {
      raise<input_error>("a prompt of ", prompt.size(), " tokens leaves no room to write in a context of ", context,
                         ".");
    }
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      if (prompt[i] < 0 || prompt[i] >= vocab_size) {
        raise<input_error>("token ", i, " of the prompt is ", prompt[i], ", but the vocabulary ends at ",
                           vocab_size - 1, ".");
      }
    }
    search_ = stop_string_search(stop.strings);
    stop_ = std::move(stop);
    context_ = context;
    text_.reserve(static_cast<std::size_t>(context) + 1);
    text_.assign(prompt.begin(), prompt.end());
    prompt_size_ = prompt.size();
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
  //! Tokens that still fit.
  std::int32_t room() const { return context_ - static_cast<std::int32_t>(text_.size()); }

  //! Commits a verdict up to the first stop condition. `piece_of(token)` gives a token's text.
  //!
  //! Post        the verdict as committed
  template <class PieceT>
  verdict commit(tree_view tree, verdict v, const PieceT& piece_of) {
    const std::int32_t n = tree.depth[v.accepted] + 1;
    std::int32_t kept = 0;
    while (kept < n && running()) {
      const token_id token = kept + 1 < n ? tree.token[tree.ancestor_at(v.accepted, kept + 1)] : v.token;
      text_.push_back(token);
      ++kept;
      update(token, piece_of(token));
    }
    ++round_;
    return cut(tree, v, kept);
  }

 private:
  void update(token_id token, std::string_view piece) {
    const bool is_stop_token = std::find(stop_.tokens.begin(), stop_.tokens.end(), token) != stop_.tokens.end();
    if (is_stop_token) {
      state_ = status::stop_token;
    } else if (search_.push(piece)) {
      state_ = status::stop_string;
    } else if (static_cast<std::int64_t>(written().size()) >= stop_.max_tokens) {
      state_ = status::length;
    } else if (room() <= 0) {
      state_ = status::context_full;
    }
  }

  std::vector<token_id> text_;
  std::size_t prompt_size_ = 0;
  std::int32_t context_ = 0;
  std::int32_t round_ = 0;
  status state_ = status::length;
  stop_conditions stop_;
  stop_string_search search_;
};

}  // namespace espalier
