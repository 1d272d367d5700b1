// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/sampling/top_tokens.hpp"

namespace espalier {

//! A token with its log-probability under the target alone: by the target's logits as the text's processor leaves them,
//! whatever the temperature. For a token of a prompt, by the target's own logits.
struct token_log_prob {
  token_id token = 0;
  double log_prob = 0;
};

//! A token of the text, and what else the target might have written there.
struct scored_token : token_log_prob {
  std::span<const token_log_prob>
      best{};  //!< the most probable tokens, best first, as many as text_options::log_probs says
};

#if ESPALIER_HOSTED

//! Collector of the log-probabilities of the tokens of a round.
//!
//! Complexity  add: one pass over a row; no allocation after reserve()
//! Errors      numeric_error as top_tokens::of_logits
template <class NumberT>
class log_probs {
 public:
  //! Takes memory for n tokens a round, with the k best at each place; with k < 0 none are collected.
  void reserve(std::int32_t n, std::int32_t k, std::int32_t vocab) {
    k_ = (std::min)(k, vocab);
    tokens_.clear();
    if (k < 0) return;
    const auto best = static_cast<std::size_t>(k_);
    tokens_.reserve(static_cast<std::size_t>(n));
    best_.resize(static_cast<std::size_t>(n) * best);
    found_.resize(best);
    top_.reserve(vocab, k_);
  }

  void clear() { tokens_.clear(); }

  //! Adds the token that followed this row of logits.
  void add(std::span<const NumberT> logits, token_id token, row_origin from) {
    const std::int32_t n = top_.of_logits(logits, found_, from);
    const auto of = [&](token_id t) {
      return token_log_prob{t, static_cast<double>(logits[static_cast<std::size_t>(t)]) - top_.log_total()};
    };
    const auto best = std::span(best_).subspan(tokens_.size() * found_.size(), static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < best.size(); ++i)
      best[i] = of(found_[i].token);
    tokens_.push_back({of(token), best});
  }

  //! Adds the tokens that a verdict commits, if any are collected; rows.logits(u) are the logits after node u.
  template <class RowsT>
  void add(tree_view tree, verdict v, RowsT& rows, std::int32_t sequence) {
    const std::int32_t n = k_ < 0 ? -1 : tree.depth[v.accepted];
    for (std::int32_t d = 0; d <= n; ++d) {
      const node_id u = tree.ancestor_at(v.accepted, d);
      add(rows.logits(u), d < n ? tree.token[tree.ancestor_at(v.accepted, d + 1)] : v.token,
          row_origin::after_node(row_origin::model::target, sequence, u));
    }
  }

  //! Returns the tokens that were added, in the order of the text; valid until the next clear() or reserve().
  std::span<const scored_token> tokens() const { return tokens_; }

 private:
  std::int32_t k_ = -1;
  top_tokens<NumberT> top_;
  detail::list<ranked_token<NumberT>> found_;  // [k]
  detail::list<scored_token> tokens_;
  detail::list<token_log_prob> best_;  // [n][k]
};

#else

//! Without a heap no log-probabilities are collected: text::begin() refuses options that ask for them.
template <class NumberT>
class log_probs {
 public:
  void reserve(std::int32_t, std::int32_t, std::int32_t) {}
  void clear() {}
  void add(std::span<const NumberT>, token_id, row_origin) {}
  template <class RowsT>
  void add(tree_view, verdict, RowsT&, std::int32_t) {}
  std::span<const scored_token> tokens() const { return {}; }
};

#endif

}  // namespace espalier
