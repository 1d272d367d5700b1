// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/sampling/undrawn.hpp"

namespace espalier {

struct dyspec_greedy_options {
  std::int32_t budget = 64;  //!< drafted tokens of a round; all are used if the draft's rows can give them

  static constexpr void describe(auto see) {
    see(option{"budget", &dyspec_greedy_options::budget, "drafted tokens a round", 1, 1024});
  }
};

//! Grows the tree draw by draw. The next draw is made where it is most likely to be needed: after its ancestors were
//! accepted and its earlier siblings rejected, by the draft's own probabilities. Draws are without replacement.
//!
//! Complexity  one draft pass of one row for each node that is drawn from, at most the budget. A draw reads its row
//!             once or twice and takes O(log budget + c * c), where c is the number of the node's earlier draws. No
//!             allocation after the first rounds
//! Law         at which node the next draw is made does not depend on the token that it will give
//! Errors      option_error for options out of range
//! Source      DySpec, Algorithm 1. Draws that are equally likely to be needed are made in the order in which they
//!             became possible
class dyspec_greedy {
 public:
  static constexpr regime sampling = regime::without_replacement;

  explicit dyspec_greedy(dyspec_greedy_options options = {}) : options_(require_options(options)) {
    heap_.reserve(2 * static_cast<std::size_t>(options.budget) + 1);
  }

  std::int32_t max_nodes() const { return options_.budget; }
  //! Number of bytes that the policy takes of an arena at most.
  static constexpr std::size_t bytes(const static_capacity& c) {
    return arena::bytes_of<expandable>(2 * static_cast<std::size_t>(c.nodes) + 1);
  }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    heap_.clear();
    n_pushed_ = 0;
    asked_ = no_node;
    push({.reach = 1, .node = root_node});
    return wanted(tree);
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    while (has_room(tree) && !heap_.empty() && is_asked(heap_.front())) {
      expandable next = pop();
      const undrawn left(tree.view(), next.node, rows.row(next.node));
      const undrawn_draw drawn = left.draw(chance, {next.node, next.n_draws, purpose::draft});
      if (drawn.token < 0) continue;  // nothing is left of the row
      const wide_number reach = next.reach, share = left.share(drawn);
      const node_id child = tree.append(next.node, drawn.token, detail::log_prob_of(drawn.probability));
      ++next.n_draws;
      next.reach = reach * (1 - share);
      if (next.reach > 0) push(next);
      push({.reach = reach * share, .node = child});
    }
    return wanted(tree);
  }

  void observe(tree_view, verdict) const {}

 private:
  template <class TreeT>
  bool has_room(const TreeT& tree) const {
    return tree.left(options_.budget) > 0;
  }

  // Returns the node of the next draw, whose row is not there yet; no node if there is no further draw.
  template <class TreeT>
  std::span<const node_id> wanted(const TreeT& tree) {
    if (!has_room(tree) || heap_.empty()) return {};
    asked_ = heap_.front().node;
    return {&asked_, 1};
  }

  // A node, with the next draw from its row.
  struct expandable {
    wide_number reach = 1;  // probability that the draw is tested
    std::int64_t order = 0;
    node_id node = root_node;
    std::int32_t n_draws = 0;
  };

  static bool is_after(const expandable& a, const expandable& b) {
    return a.reach < b.reach || (a.reach == b.reach && a.order > b.order);
  }

  bool is_asked(const expandable& e) const { return e.n_draws > 0 || e.node == asked_; }

  void push(expandable e) {
    e.order = n_pushed_++;
    heap_.push_back(e);
    std::push_heap(heap_.begin(), heap_.end(), is_after);
  }

  expandable pop() {
    std::pop_heap(heap_.begin(), heap_.end(), is_after);
    const expandable top = heap_.back();
    heap_.pop_back();
    return top;
  }

  dyspec_greedy_options options_;
  detail::list<expandable> heap_;
  std::int64_t n_pushed_ = 0;
  node_id asked_ = no_node;  // the node asked about last
};

}  // namespace espalier
