// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/tree_policy/growth/layer.hpp"

namespace espalier {

struct fixed_options {
  std::int32_t depth = 5;    //!< D, levels below the root
  std::int32_t breadth = 2;  //!< B, children of every node
  std::int32_t budget = 64;  //!< N, drafted tokens at most

  static constexpr void describe(auto see) {
    see(option{"depth", &fixed_options::depth, "levels below the root", 1, 64});
    see(option{"breadth", &fixed_options::breadth, "children of every node", 1, layer::max_breadth});
    see(option{"budget", &fixed_options::budget, "drafted tokens a round at most", 2, 65536});
  }
};

//! Drafts the same shape every round: each node of a depth below D gets the B most probable tokens of its row as
//! children, breadth first, until the budget is spent.
//!
//! Complexity  at most D draft passes, one a level; no allocation after construction
//! Errors      option_error for options out of range
//! Source      the fixed tree with which DynaTree is compared in its appendix A
class fixed {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit fixed(fixed_options options = {}) : options_(require_options(options)), layer_(options.budget) {}

  std::int32_t max_nodes() const { return options_.budget; }
  //! Number of bytes that the policy takes of an arena at most.
  static constexpr std::size_t bytes(const static_capacity& c) { return layer::bytes(c); }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    depth_ = 0;
    layer_.start();
    return layer_.wanted(tree);
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT&) {
    layer_.expand(tree, rows, [&](double) { return options_.breadth; });
    return ++depth_ < options_.depth ? layer_.wanted(tree) : std::span<const node_id>();
  }

  void observe(tree_view, verdict) const {}

 private:
  fixed_options options_;
  layer layer_;
  std::int32_t depth_ = 0;  // levels below the root so far
};

}  // namespace espalier
