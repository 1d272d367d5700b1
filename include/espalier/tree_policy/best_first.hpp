// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/sampling/top_tokens.hpp"
#include "espalier/tree_policy/best_first/marginal_heap.hpp"
#include "espalier/tree_policy/growth/asked_nodes.hpp"

namespace espalier {

struct best_first_options {
  std::int32_t budget = 64;     //!< B, drafted tokens a round
  std::int32_t max_depth = 16;  //!< levels below the root
  double min_gain = 0;          //!< delta: a level that adds no more expected tokens than this is the last one

  static constexpr void describe(auto see) {
    using self = best_first_options;
    see(option{"budget", &self::budget, "drafted tokens a round", 1, 1024});
    see(option{"max_depth", &self::max_depth, "levels below the root", 1, 64});
    see(option{"min_gain", &self::min_gain, "a level that gains no more expected tokens is the last", 0, 1});
  }

  //! The greatest number of nodes, the root not counted, that a StepDrafter is asked about in a round. A node that is
  //! among the best after one level may be displaced after the next, so more nodes are asked about than are kept: up to
  //! 4 * budget, or 256 if that is more; but at most `budget` nodes for each level that is asked about. The number is
  //! at least `budget`. If a level would need more nodes, only its best nodes are asked about, and no level follows.
  std::int32_t max_asked() const {
    const std::int32_t of_levels = budget * (max_depth - 1);
    return (std::max)(budget, (std::min)(of_levels, (std::max)(4 * budget, std::int32_t{256})));
  }
};

//! Drafts the B most probable prefixes (paths from the root). If every token is accepted with the probability that the
//! draft gives it, no other tree of B tokens has more accepted tokens on average. Over a BlockDrafter, which gives
//! marginals, the policy is DDTree. Over a StepDrafter it is OPT-Tree: level by level, the drafter is asked only about
//! nodes that are among the best so far, since no other node can have a descendant among them.
//!
//! Complexity  BlockDrafter: one draft pass; each row is read once, and O(max_depth * B log B) in addition; no
//!             allocation after the first round. StepDrafter: one draft pass a level; each row is read once, and O(log
//!             B) for each token that enters the best prefixes; no allocation after construction. The drafter reserves
//!             a row for each of max_asked() nodes
//! Law         a parent is at least as probable as its children, and comes first if it is as probable, so the chosen
//!             prefixes are a tree. Over a BlockDrafter nodes are numbered in falling order of the float sum of
//!             log-probabilities, ties by rank along the path; over a StepDrafter in falling order of the product of
//!             probabilities, ties shallower first, then by parent and token
//! Errors      option_error for options out of range; numeric_error for logits of a block that are NaN or plus
//!             infinity, and if all logits of a row are minus infinity
//! Source      Ringel and Romano, DDTree, Algorithm 1; Wang et al., OPT-Tree. min_gain and the rules for levels do not
//!             apply to blocks. If the tree has no room for all nodes of a level, only its best nodes are asked about,
//!             and no level follows
class best_first {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit best_first(best_first_options options = {})
      : options_(require_options(options)),
        tokens_(at(options.max_depth) * at(options.budget)),
        log_probs_(tokens_.size()),
        heap_entries_(at(options.budget) + 1),
        heap_nodes_(at(options.budget) + 1),
        heap_buckets_(at(options.budget)),
        asked_(options.budget, max_asked(), options.budget),
        best_(at(options.budget)),
        reach_(at(options.budget) + 1) {}

  std::int32_t max_nodes() const { return options_.budget; }

  std::int32_t max_asked() const { return options_.max_asked(); }

  std::span<const node_id> was() const { return asked_.was(); }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    limit_ = at((std::min)(tree.limit(), options_.budget));
    n_best_ = 0;
    depth_ = 1;
    expected_ = 0;
    reach_[0] = 1;
    asked_.start();
    return limit_ > 0 ? asked_.level() : std::span<const node_id>();
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const block_rows<NumberT>& block, ChanceT&) {
    const std::int32_t ranks = (std::min)(static_cast<std::int32_t>(limit_), block.logits.vocab);
    auto& [top, found] = std::get<row_lists<NumberT>>(lists_);
    top.reserve(block.logits.vocab, options_.budget);
    found.resize(at(options_.budget));
    const std::int32_t n_rows = (std::min)(block.logits.n_rows, options_.max_depth);
    for (std::int32_t r = 0; r < n_rows; ++r) {
      const std::int32_t n =
          top.of_logits(block.logits.row(r), std::span(found).first(at(ranks)), row_origin::of_block(r));
      for (std::int32_t i = 0; i < ranks; ++i) {
        tokens_[at(r * ranks + i)] = i < n ? block.token_of(found[at(i)].token) : 0;
        log_probs_[at(r * ranks + i)] = i < n ? static_cast<float>(found[at(i)].log_prob) : impossible;
      }
    }
    take_best(tree, tokens_, log_probs_, n_rows, ranks);
    return {};
  }

  //! Appends the most probable prefixes of a block to a tree that has only its root. The caller has already found the
  //! most probable tokens of each row of the block.
  //!
  //! Shapes      tokens, log_probs: [n_rows][ranks], in each row the most probable first; a log-probability of minus
  //!             infinity ends the row's list
  //! Pre         n_rows <= max_depth
  //! Complexity  O(B log B)
  template <class TreeT>
  void take_best(TreeT& tree, std::span<const token_id> tokens, std::span<const float> log_probs, std::int32_t n_rows,
                 std::int32_t ranks) {
    marginal_heap heap(heap_entries_.data(), heap_nodes_.data(), heap_buckets_.data());
    const std::int32_t n = heap.take(log_probs.data(), n_rows, ranks, (std::min)(tree.limit(), options_.budget));
    heap.append(tree, tokens.data(), log_probs.data(), ranks, n);
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT&) {
    std::make_heap(best_.begin(), best_end(), is_better);
    for (std::size_t i = 0; i < asked_.level().size(); ++i)
      consider_children(asked_.level()[i], reach_[i], rows);
    std::sort_heap(best_.begin(), best_end(), is_better);
    const double before = std::exchange(expected_, 0.0);
    for (std::size_t i = 0; i < n_best_; ++i)
      expected_ += best_[i].probability;
    asked_.next_level();
    if (depth_ < options_.max_depth && expected_ - before > options_.min_gain) {
      for (std::size_t i = 0; i < n_best_; ++i) {
        if (best_[i].depth != depth_) continue;
        reach_[asked_.level().size()] = best_[i].probability;
        asked_.add(tree, best_[i]);
      }
    }
    ++depth_;
    if (asked_.level().empty()) asked_.rebuild(tree, std::span(best_).first(n_best_));
    return asked_.level();
  }

  void observe(tree_view, verdict) const {}

 private:
  static constexpr float impossible = -std::numeric_limits<float>::infinity();

  // The most probable tokens of a block's rows, for rows of one number type.
  template <class NumberT>
  struct row_lists {
    top_tokens<NumberT> top;
    std::vector<ranked_token<NumberT>> found;
  };

  struct prefix : considered_node {
    double probability = 0;
    std::int32_t depth = 0;
  };

  static std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

  static bool is_better(const prefix& a, const prefix& b) {
    if (a.probability != b.probability) return a.probability > b.probability;
    if (a.depth != b.depth) return a.depth < b.depth;
    return a.parent != b.parent ? a.parent < b.parent : a.token < b.token;
  }

  std::vector<prefix>::iterator best_end() { return best_.begin() + static_cast<std::ptrdiff_t>(n_best_); }

  // The probability that a prefix must exceed to be among the best. A prefix that only equals the worst of them is not
  // taken.
  double floor() const { return n_best_ < limit_ ? 0 : best_[0].probability; }

  template <class NumberT>
  void consider_children(node_id u, double reach, const node_rows<NumberT>& rows) {
    constexpr std::size_t block = 64;
    const std::span<const NumberT> row = rows.row(u);
    if (rows.listed != nullptr) {
      for (const token_id t : rows.listed_tokens(u))
        consider_child(u, reach, t, static_cast<double>(row[static_cast<std::size_t>(t)]));
      return;
    }
    // A child can only be among the best if its own probability exceeds this bound, which is rounded down to be safe.
    const auto bound = [&] { return static_cast<NumberT>(floor() / reach * (1 - 1e-6)); };
    NumberT least = bound();
    for (std::size_t first = 0; first < row.size(); first += block) {
      const std::size_t end = (std::min)(first + block, row.size());
      int above = 0;
      for (std::size_t t = first; t < end; ++t)
        above |= row[t] > least ? 1 : 0;
      if (above == 0) continue;
      for (std::size_t t = first; t < end; ++t) {
        if (row[t] > least && consider_child(u, reach, static_cast<token_id>(t), static_cast<double>(row[t])))
          least = bound();
      }
    }
  }

  bool consider_child(node_id u, double reach, token_id token, double probability) {
    prefix child;
    child.probability = reach * (std::min)(1.0, probability);
    if (!(child.probability > floor())) return false;
    child.token = token;
    child.log_prob = detail::log_prob_of(probability);
    child.parent = u;
    child.depth = depth_;
    if (n_best_ < limit_) {
      ++n_best_;
    } else {
      std::pop_heap(best_.begin(), best_end(), is_better);
    }
    best_[n_best_ - 1] = child;
    std::push_heap(best_.begin(), best_end(), is_better);
    return true;
  }

  best_first_options options_;
  std::tuple<row_lists<float>, row_lists<double>> lists_;
  std::vector<token_id> tokens_;  // [max_depth][budget] the most probable tokens of a block's rows
  std::vector<float> log_probs_;  // [max_depth][budget]
  std::vector<std::uint64_t> heap_entries_;
  std::vector<marginal_node> heap_nodes_;
  std::vector<node_id> heap_buckets_;
  asked_nodes asked_;
  std::vector<prefix> best_;   // [budget] the best prefixes so far, as a heap with the worst on top, or sorted
  std::vector<double> reach_;  // [budget + 1] probability of the path to each node of the level
  std::size_t n_best_ = 0;
  std::size_t limit_ = 0;
  std::int32_t depth_ = 1;  // depth of the children of the level
  double expected_ = 0;     // expected number of accepted tokens of the best prefixes
};

}  // namespace espalier
