// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/verifier/walk/remaining_draft.hpp"

namespace espalier {

//! Counts how often the first, second, third draw of a node was the accepted one, over the nodes that verification
//! reached. sequoia builds its shape from these rates. The object is an observer: call it with each round's record.
//!
//! Draws of one token share the rank of the first of them. A rank is counted only at nodes where such a draw was made.
//! So, if the shape of the trees depends on the text, the rates depend on that shape. The shape of sequoia's trees does
//! not depend on the text; to measure rates for sequoia, build it from equal rates first.
//!
//! Complexity  O(draws of the nodes on the accepted path) a round; no allocation after construction
//! Errors      option_error for a number of ranks outside 1 to 64
//! Source      Sequoia, section 3: the positional acceptance
class acceptance_by_rank {
 public:
  explicit acceptance_by_rank(std::int32_t ranks = 16) {
    require_option("ranks", ranks, 1, 64);
    made_.resize(static_cast<std::size_t>(ranks));
    accepted_.resize(static_cast<std::size_t>(ranks));
  }

  template <class RoundT>
  void operator()(const RoundT& round) {
    count(round.tree, round.decision);
  }

  //! Counts the draws of one round. A verdict that was cut short ends with a drafted token, which was accepted, too.
  void count(tree_view tree, verdict v) {
    count_node(tree, v.accepted, tree.find_child(v.accepted, v.token));
    for (node_id u = v.accepted; u != root_node; u = tree.parent[u])
      count_node(tree, tree.parent[u], u);
  }

  //! Number of reached nodes that had a draw of this rank (0: the first draw).
  std::int64_t made(std::int32_t rank) const { return made_[static_cast<std::size_t>(rank)]; }
  //! Number of reached nodes at which the draw of this rank was the accepted one.
  std::int64_t accepted(std::int32_t rank) const { return accepted_[static_cast<std::size_t>(rank)]; }

  //! The acceptance rate of each rank, [ranks]: accepted / made, 0 if none was made.
  std::vector<double> rates() const {
    std::vector<double> result(made_.size(), 0.0);
    for (std::size_t i = 0; i < made_.size(); ++i) {
      if (made_[i] > 0) result[i] = static_cast<double>(accepted_[i]) / static_cast<double>(made_[i]);
    }
    return result;
  }

 private:
  void count_node(tree_view tree, node_id u, node_id accepted) {
    std::size_t rank = 0;
    for (auto draw = tree.draws(u).begin(); draw != tree.draws(u).end() && rank < made_.size(); ++draw) {
      if (detail::is_repeated(tree, u, draw)) continue;
      made_[rank] += 1;
      accepted_[rank] += *draw == accepted ? 1 : 0;
      ++rank;
    }
  }

  std::vector<std::int64_t> made_;
  std::vector<std::int64_t> accepted_;
};

}  // namespace espalier
