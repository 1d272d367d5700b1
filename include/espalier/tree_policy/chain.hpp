// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>
#include <type_traits>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/sampling/top_k.hpp"
#include "espalier/sampling/top_tokens.hpp"
#include "espalier/tree_policy/log_prob.hpp"

namespace espalier {

namespace detail {

// Asks about u, gives it its most probable token and moves u there; returns the token's probability, 0 where there is none.
template <class TreeT, class DrafterT>
double append_best(TreeT& tree, DrafterT& drafter, node_id& u) {
  const auto row = drafter.propose(tree, std::span<const node_id>(&u, 1)).row(0);
  candidate<typename decltype(row)::value_type> best[1];
  if (top_k(row, std::span(best)) == 0) return 0;
  u = tree.append(u, best[0].token, detail::log_prob_of(static_cast<double>(best[0].probability)));
  return static_cast<double>(best[0].probability);
}

}  // namespace detail

struct chain_options {
  std::int32_t length = 5;  //!< K, drafted tokens a round
};

//! Drafts the K most probable tokens, one after the other: linear speculation. From a BlockDrafter, the most probable token of
//! each marginal; from a SequenceDrafter, the run that it proposes, with a log-probability of 0.
//!
//! Complexity  K draft passes of one row; from a BlockDrafter one pass, and one over each row; from a SequenceDrafter one call.
//!             No allocation after the first round
//! Errors      option_error for a length outside 1 to 1024; numeric_error as top_tokens::of_logits for a block's rows
//! Source      Leviathan et al. 2023, greedy; K = 5 as in DynaTree's tables. Over a block it is DFlash's decoding
class chain {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit chain(chain_options options = {}) : options_(options) { require_option("length", options.length, 1, 1024); }

  std::int32_t max_nodes() const { return options_.length; }

  template <class TreeT, StepDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT&) const {
    node_id u = root_node;
    for (std::int32_t i = 0; i < options_.length && !tree.full(); ++i) {
      if (!(detail::append_best(tree, drafter, u) > 0)) return;
    }
  }

  template <class TreeT, BlockDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT&) {
    if (tree.full()) return;
    const auto logits = drafter.propose_block();
    using number = std::remove_cvref_t<decltype(logits.row(0)[0])>;
    auto& top = std::get<top_tokens<number>>(top_);
    top.reserve(drafter.vocab_size(), 1);
    node_id u = root_node;
    for (std::int32_t i = 0; i < (std::min)(options_.length, logits.n_rows) && !tree.full(); ++i) {
      ranked_token<number> best[1];
      if (top.of_logits(logits.row(i), best, i) == 0) return;
      u = tree.append(u, best[0].token, static_cast<float>(best[0].log_prob));
    }
  }

  template <class TreeT, SequenceDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT&) const {
    const auto left = static_cast<std::int32_t>((std::min)(options_.length, tree.limit()));
    node_id u = root_node;
    for (const token_id token : drafter.propose_run(left)) {
      if (tree.full()) return;
      u = tree.append(u, token, 0.0F);
    }
  }

  void observe(tree_view, verdict) const {}

 private:
  chain_options options_;
  std::tuple<top_tokens<float>, top_tokens<double>> top_;  // for blocks, by their number type
};

}  // namespace espalier
