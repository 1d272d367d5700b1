// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/sampling/top_k.hpp"
#include "espalier/sampling/top_tokens.hpp"

namespace espalier {

namespace detail {

// Appends the most probable token of the row of u as a child of u, and sets u to the child. Returns the probability of
// the token. Returns 0, and changes nothing, if no token of the row has a probability above 0.
template <class TreeT, class NumberT>
wide_number append_best(TreeT& tree, const node_rows<NumberT>& rows, node_id& u) {
  candidate<NumberT> best[1];
  if (top_k(rows, u, std::span(best)) == 0) return 0;
  u = tree.append(u, best[0].token, log_prob_of(static_cast<wide_number>(best[0].probability)));
  return static_cast<wide_number>(best[0].probability);
}

}  // namespace detail

struct chain_options {
  std::int32_t length = 5;  //!< K, drafted tokens of a round

  static constexpr void describe(auto see) {
    see(option{"length", &chain_options::length, "drafted tokens a round", 1, 1024});
  }
};

//! Drafts a path of K tokens, each the most probable one after the token before: linear speculation. Over a
//! BlockDrafter it drafts the most probable token of each marginal; over a SequenceDrafter the first K tokens of the
//! run that it proposes, each with a log-probability of 0.
//!
//! Complexity  K draft passes of one row; from a BlockDrafter one draft pass, and each row is read once; from a
//!             SequenceDrafter one call. No allocation after the first round
//! Errors      option_error for options out of range; errors of top_tokens::of_logits for a block's rows
//! Source      Leviathan et al. 2023, greedy; K = 5 as in DynaTree's tables. Over a block it is DFlash's decoding
class chain {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit chain(chain_options options = {}) : options_(require_options(options)) {}

  std::int32_t max_nodes() const { return options_.length; }
  //! Returns 0: the policy takes no memory of an arena. Over a block drafter it would need some, but a static_decoder
  //! cannot have a block drafter.
  static constexpr std::size_t bytes(const static_capacity&) { return 0; }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    u_ = root_node;
    length_ = (std::min)(options_.length, tree.limit());
    return wanted(tree);
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT&) {
    if (!(detail::append_best(tree, rows, u_) > 0)) return {};
    return wanted(tree);
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const block_rows<NumberT>& block, ChanceT&) {
    auto& top = std::get<top_tokens<NumberT>>(top_);
    top.reserve(block.logits.vocab, 1);
    for (std::int32_t i = 0; i < (std::min)(length_, block.logits.n_rows); ++i) {
      ranked_token<NumberT> best[1];
      if (top.of_logits(block.logits.row(i), best, row_origin::of_block(i)) == 0) break;
      u_ = tree.append(u_, block.token_of(best[0].token), static_cast<float>(best[0].log_prob));
    }
    return {};
  }

  template <class TreeT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, token_run run, ChanceT&) {
    for (const token_id token : run.tokens) {
      if (tree.view().n_draws == length_) break;
      u_ = tree.append(u_, token, 0.0F);
    }
    return {};
  }

  void observe(tree_view, verdict) const {}

 private:
  template <class TreeT>
  std::span<const node_id> wanted(const TreeT& tree) const {
    return tree.view().n_draws < length_ ? std::span(&u_, 1) : std::span<const node_id>();
  }

  chain_options options_;
  std::int32_t length_ = 0;                                // drafted tokens of this round at most
  node_id u_ = root_node;                                  // the node drafted last
  std::tuple<top_tokens<float>, top_tokens<double>> top_;  // find the best token of a block's row, by number type
};

}  // namespace espalier
