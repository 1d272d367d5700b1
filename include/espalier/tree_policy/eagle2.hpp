// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/sampling/top_k.hpp"
#include "espalier/tree_policy/growth/asked_nodes.hpp"

namespace espalier {

//! Options of eagle2. Defaults are those of EAGLE's public code.
struct eagle2_options {
  std::int32_t beam = 10;    //!< K, nodes asked about in a level, and children of each
  std::int32_t depth = 5;    //!< levels asked about below the root
  std::int32_t budget = 59;  //!< N, drafted tokens kept

  static constexpr void describe(auto see) {
    see(option{"beam", &eagle2_options::beam, "nodes asked about in a level, and children of each", 1, 64});
    see(option{"depth", &eagle2_options::depth, "levels asked about below the root", 0, 64});
    see(option{"budget", &eagle2_options::budget, "drafted tokens kept", 1, 1024});
  }

  //! The greatest number of nodes, the root not counted, that the tree has while it grows: the nodes asked about in all
  //! levels stay in it until the best nodes are known.
  std::int32_t max_asked() const { return (std::max)(budget, beam * depth); }
};

//! Asks about the most probable nodes of each level, by the probability of their paths; then keeps the most probable
//! nodes of all levels.
//!
//! Complexity  at most depth + 1 forward passes of the draft; each row asked for is read once. Sorting takes O(beam^2
//!             log(beam)) a level, and O(depth * beam^2 log(budget)) at the end. No allocation after construction
//! Law         a node is kept only with its parent, which is at least as probable and was considered earlier
//! Errors      option_error for options out of range
//! Source      Li et al., EAGLE-2, as its public code has it. Tokens of draft probability 0 are left out. If the tree
//!             has no room for all nodes of a beam, only its best nodes are asked about, and no level follows
class eagle2 {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit eagle2(eagle2_options options = {})
      : options_(require_options(options)),
        asked_(options.beam, options.beam * options.depth, options.budget),
        considered_(at(options.beam) * (1 + at(options.depth) * at(options.beam))),
        order_(considered_.size()) {}

  std::int32_t max_nodes() const { return options_.budget; }

  std::int32_t max_asked() const { return options_.max_asked(); }

  std::span<const node_id> was() const { return asked_.was(); }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    asked_.start();
    n_considered_ = 0;
    depth_ = 0;
    scores_[0] = 0;
    return tree.limit() > 0 ? asked_.level() : std::span<const node_id>();
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT&) {
    const std::size_t first = n_considered_;
    for (std::size_t i = 0; i < asked_.level().size(); ++i)
      consider_children(asked_.level()[i], scores_[i], rows);
    asked_.next_level();
    if (depth_++ < options_.depth) {
      for (const std::size_t i : best(first, at(options_.beam))) {
        scores_[asked_.level().size()] = considered_[i].score;
        asked_.add(tree, considered_[i]);
      }
    }
    if (asked_.level().empty()) keep_best(tree);
    return asked_.level();
  }

  void observe(tree_view, verdict) const {}

 private:
  static constexpr std::int32_t max_beam = option_of(&eagle2_options::beam).high();

  struct scored : considered_node {
    double score = 0;  // log-probability of the path
  };

  static std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

  template <class TreeT>
  void keep_best(TreeT& tree) {
    const auto kept = best(0, at((std::min)(tree.limit(), options_.budget)));
    std::sort(kept.begin(), kept.end());
    for (std::size_t i = 0; i < kept.size(); ++i)
      considered_[i] = considered_[kept[i]];
    asked_.rebuild(tree, std::span(considered_).first(kept.size()));
  }

  template <class NumberT>
  void consider_children(node_id u, double score, const node_rows<NumberT>& rows) {
    candidate<NumberT> children[max_beam];
    const std::int32_t n = top_k(rows, u, std::span(children).first(at(options_.beam)));
    for (std::int32_t i = 0; i < n; ++i) {
      const double log_prob = detail::path_log_prob_of(static_cast<double>(children[i].probability));
      scored& child = considered_[n_considered_++];
      child.token = children[i].token;
      child.log_prob = static_cast<float>(log_prob);
      child.parent = u;
      child.node = no_node;
      child.score = score + log_prob;
    }
  }

  // Returns the indices of the k best nodes considered from `first` on, best first; of equal nodes the earlier first.
  std::span<std::size_t> best(std::size_t first, std::size_t k) {
    const auto n = static_cast<std::ptrdiff_t>(n_considered_ - first);
    const auto wanted = (std::min)(n, static_cast<std::ptrdiff_t>(k));
    std::iota(order_.begin(), order_.begin() + n, first);
    std::partial_sort(order_.begin(), order_.begin() + wanted, order_.begin() + n, [&](std::size_t a, std::size_t b) {
      const double of_a = considered_[a].score, of_b = considered_[b].score;
      return of_a != of_b ? of_a > of_b : a < b;
    });
    return std::span(order_).first(static_cast<std::size_t>(wanted));
  }

  eagle2_options options_;
  asked_nodes asked_;
  std::vector<scored> considered_;    // [beam + depth * beam * beam]
  std::vector<std::size_t> order_;    // [beam + depth * beam * beam] indices into considered_
  double scores_[max_beam + 1] = {};  // log-probabilities of the paths to the nodes of the level
  std::size_t n_considered_ = 0;
  std::int32_t depth_ = 0;  // depth of the level
};

}  // namespace espalier
