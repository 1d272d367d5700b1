// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/analysis/branching.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/verifier/walk/walk.hpp"

namespace espalier {

//! The number of tokens that a round commits on average when this verifier judges this tree: the sum, over all nodes,
//! of the probability that the verdict commits the path to the node. The root's 1 stands for the target's own token.
//!
//! The rows are those that the verifier's verify() takes. The verifier must be one for which there is an overload of
//! branching_probabilities.
//!
//! Complexity  branching_probabilities once for each inner node that can be reached
//! Law         1 + the mean depth of the accepted node, for this tree
//! Errors      numeric_error for rows that are no distributions, input_error for a tree that its rows could not have
//!             given
//! Source      Delayed tree expansion, equation 3, the inner sum
template <class VerifierT, class DraftRowsT, class TargetRowsT>
double expected_block_efficiency(const VerifierT& verifier, tree_view tree, const DraftRowsT& draft,
                                 TargetRowsT& target) {
  std::vector<double> reached(static_cast<std::size_t>(tree.n_nodes), 0.0);
  std::vector<token_id> list;
  reached[0] = 1;
  double total = 0;
  for (node_id u = 0; u < tree.n_nodes; ++u) {
    const double here = reached[static_cast<std::size_t>(u)];
    total += here;
    if (here == 0 || tree.is_leaf(u)) continue;
    const auto p = detail::target_row(target, u).span();
    const auto q = detail::draft_row(draft, u, p.size()).span();
    list.clear();
    for (const node_id child : tree.draws(u))
      list.push_back(tree.token[child]);
    const std::vector<double> branching = branching_probabilities(verifier, p, q, list);
    auto probability = branching.begin();
    for (const node_id child : tree.draws(u))
      reached[static_cast<std::size_t>(child)] = here * *probability++;
  }
  return total;
}

//! A drawn tree, with the rows that a verifier's verify() takes. `target` is kept by reference.
template <class DraftRowsT, class TargetRowsT>
struct drawn_tree {
  tree_view tree;
  DraftRowsT draft;
  TargetRowsT& target;
};

template <class DraftRowsT, class TargetRowsT>
drawn_tree(tree_view, DraftRowsT, TargetRowsT&) -> drawn_tree<DraftRowsT, TargetRowsT>;

//! An estimate of the number of tokens that a round commits on average over random trees: the mean of
//! expected_block_efficiency over n trees. Its variance comes from drawing the trees alone; verification adds none.
//!
//!     const double tokens = estimated_block_efficiency(specinfer(), 4, [&](std::int32_t i) {
//!       philox_chance chance(seed, sequence, i);
//!       tree.reset(pending);
//!       for (auto wanted = policy.begin(tree); !wanted.empty();)
//!         wanted = policy.take(tree, ask(drafter, tree, wanted, policy.max_nodes()), chance);
//!       return drawn_tree{tree.view(), drafter.rows(), target_rows(tree)};
//!     });
//!
//! Complexity  n times draw(i) and expected_block_efficiency
//! Law         unbiased if draw(i) draws as the policy does; with independent draws its error is of order 1 / sqrt(n)
//! Errors      input_error for no tree; otherwise as expected_block_efficiency
//! Source      Delayed tree expansion, equation 3, where n is 4
template <class VerifierT, class DrawT>
double estimated_block_efficiency(const VerifierT& verifier, std::int32_t n, DrawT&& draw) {
  if (n < 1) raise<input_error>("an estimate over ", n, " trees was asked for; it takes at least 1.");
  double total = 0;
  for (std::int32_t i = 0; i < n; ++i) {
    auto drawn = draw(i);
    total += expected_block_efficiency(verifier, drawn.tree, drawn.draft, drawn.target);
  }
  return total / n;
}

}  // namespace espalier
