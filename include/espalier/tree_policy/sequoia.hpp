// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/sampling/undrawn.hpp"
#include "espalier/tree_policy/sequoia/sequoia_shapes.hpp"

namespace espalier {

struct sequoia_options {
  std::int32_t budget = 64;     //!< drafted tokens of a round
  std::int32_t max_depth = 10;  //!< levels below the root at most

  static constexpr void describe(auto see) {
    see(option{"budget", &sequoia_options::budget, "drafted tokens a round", 1, sequoia_shapes::max_budget});
    see(option{"max_depth", &sequoia_options::max_depth, "levels below the root", 1, sequoia_shapes::max_levels});
  }
};

//! Draws the same shape every round: of all trees of that size and depth, the one that commits most tokens, if draws
//! are accepted as often as draws of their rank were before. Draws are without replacement.
//!
//! Complexity  that of sequoia_shapes to build; one draft pass a level of the nodes that have children; a draw is a
//!             pass over a row, and O(c) for each of the c drawn before. No allocation after construction
//! Law         whether a draw is made does not depend on any token. Only a row that has given all its tokens gives no
//!             further draw; the part of the shape below that draw is then left out
//! Errors      option_error for options out of range; otherwise those of sequoia_shapes
//! Source      Sequoia, section 3. There, a row that has given all its tokens goes on with tokens of probability 0;
//!             here it ends, as in DySpec
class sequoia {
 public:
  static constexpr regime sampling = regime::without_replacement;

  //! Default acceptance: how often the draw of each rank was the accepted one when the bundled models wrote at
  //! temperature 1, rounded so that it falls with the rank. bench_tables_dyspec prints such rates of any pair.
  static constexpr double default_acceptance[] = {0.713, 0.094, 0.044, 0.026, 0.016, 0.011, 0.010, 0.007,
                                                  0.006, 0.006, 0.005, 0.004, 0.004, 0.003, 0.003, 0.003};

  //! Makes the policy of the best tree for these rates. acceptance[r] is the rate of the draws of rank r, the first
  //! draw's first: see acceptance_by_rank.
  explicit sequoia(sequoia_options options = {}, std::span<const double> acceptance = default_acceptance) {
    require_options(options);
    const sequoia_shapes shapes(acceptance, options.budget, options.max_depth);
    n_children_ = shapes.children(shapes.best_size(options.max_depth), options.max_depth);
    drawn_.resize(n_children_.size(), root_node);
    asked_.resize(n_children_.size());
  }

  std::int32_t max_nodes() const { return static_cast<std::int32_t>(n_children_.size()) - 1; }

  //! The shape: the number of children of each node, level after level from the root on.
  std::span<const std::int32_t> children() const { return n_children_; }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    begin_ = 0;
    end_ = 1;
    return wanted(tree);
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    std::size_t child = end_;
    for (std::size_t asked = 0; begin_ < end_; ++begin_) {
      const bool is_asked = asked < n_asked_ && drawn_[begin_] == asked_[asked];
      for (std::int32_t rank = 0; rank < n_children_[begin_]; ++rank)
        drawn_[child++] = is_asked ? draw(tree, asked_[asked], rank, rows, chance) : no_node;
      asked += is_asked ? 1 : 0;
    }
    end_ = child;
    return wanted(tree);
  }

  void observe(tree_view, verdict) const {}

 private:
  // The nodes of a level that have children. Each gives at least one draw, so no more are asked about than the tree has
  // room for.
  template <class TreeT>
  std::span<const node_id> wanted(const TreeT& tree) {
    const std::int32_t left = tree.left();
    n_asked_ = 0;
    for (std::size_t i = begin_; i < end_ && static_cast<std::int32_t>(n_asked_) < left; ++i) {
      if (n_children_[i] > 0 && drawn_[i] != no_node) asked_[n_asked_++] = drawn_[i];
    }
    return std::span<const node_id>(asked_).first(n_asked_);
  }

  template <class TreeT, class RowsT, class ChanceT>
  static node_id draw(TreeT& tree, node_id u, std::int32_t slot, const RowsT& rows, ChanceT& chance) {
    if (tree.full()) return no_node;
    const undrawn_draw drawn = undrawn(tree.view(), u, rows.row(u)).draw(chance, {u, slot, purpose::draft});
    if (drawn.token < 0) return no_node;  // nothing is left of the row
    return tree.append(u, drawn.token, detail::log_prob_of(drawn.probability));
  }

  std::vector<std::int32_t> n_children_;  // [nodes of the shape]
  std::vector<node_id> drawn_;            // [nodes of the shape] the node of the tree, or no_node
  std::vector<node_id> asked_;
  std::size_t n_asked_ = 0;
  std::size_t begin_ = 0, end_ = 0;  // range of the level in the shape
};

}  // namespace espalier
