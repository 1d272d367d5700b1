// SPDX-License-Identifier: BSL-1.0
// A tree policy and a verifier of one's own. tests/generate/own_parts.cpp proves that they are lossless.
#pragma once

#include <algorithm>
#include <boost/hana/tuple.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <espalier/core/error.hpp>
#include <espalier/espalier.hpp>
#include <espalier/registry/part.hpp>
#include <numeric>
#include <span>
#include <vector>

namespace own {

using namespace espalier;

struct entropy_tree_options {
  std::int32_t budget = 12;  // drafted tokens of a tree at most
  std::int32_t depth = 6;    // of the tree at most
  double bits = 1.5;         // of a row's entropy, for which a node gets one draw more

  static constexpr void describe(auto see) {
    see(option{"budget", &entropy_tree_options::budget, "drafted tokens of a tree at most", 0, 256});
    see(option{"depth", &entropy_tree_options::depth, "of the tree at most", 1, 64});
    see(option{"bits", &entropy_tree_options::bits, "bits of entropy for which a node gets one draw more", 0.1, 32});
  }
};

// Independent draws: up to three from a node after which the draft is unsure, one where it is sure, fewer far down.
class entropy_tree {
 public:
  static constexpr regime sampling = regime::iid;

  explicit entropy_tree(entropy_tree_options options = {}) : options_(require_options(options)) {
    wanted_.reserve(static_cast<std::size_t>(options.budget) + 1);
  }

  std::int32_t max_nodes() const { return options_.budget; }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    wanted_.assign(1, root_node);
    return wanted(tree);
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    const node_id first_new = tree.size();
    for (const node_id u : wanted_) {
      const std::span<const NumberT> row = rows.row(u);
      // Known before anything is drawn: which token comes must not decide whether it is kept.
      const std::int32_t n = draws_after(row, tree.view().depth[u]);
      for (std::int32_t i = 0; i < n && tree.left(options_.budget) > 0; ++i) {
        const token_id token = chance.pick(row, {u, i, purpose::draft});
        if (token < 0) raise<numeric_error>("the draft's row after node ", u, " has no probability above 0.");
        tree.draw(u, token, std::log(static_cast<float>(row[static_cast<std::size_t>(token)])));
      }
    }
    wanted_.resize(static_cast<std::size_t>(tree.size() - first_new));
    std::iota(wanted_.begin(), wanted_.end(), first_new);
    return wanted(tree);
  }

  void observe(tree_view, verdict) const {}

 private:
  template <class TreeT>
  std::span<const node_id> wanted(const TreeT& tree) const {
    return tree.left(options_.budget) > 0 ? std::span<const node_id>(wanted_) : std::span<const node_id>();
  }

  template <class NumberT>
  std::int32_t draws_after(std::span<const NumberT> row, std::int32_t depth) const {
    if (depth == options_.depth) return 0;
    double entropy = 0;
    for (const double q : row)
      entropy -= q > 0 ? q * std::log2(q) : 0;
    const auto n = 1 + static_cast<std::int32_t>((std::min)(entropy / options_.bits, 2.0));
    return (std::max)(1, n - depth / 2);
  }

  entropy_tree_options options_;
  std::vector<node_id> wanted_;
};

// Tests one draw of a node: the one that the target likes best, by p / q. How often each token is this winner is known:
// the winner is tested as one draw from that distribution.
class best_ratio {
 public:
  static constexpr regime lossless = regime::iid | regime::single_path;

  void reserve(std::int32_t, std::int32_t vocab) {
    order_.reserve(static_cast<std::size_t>(vocab));
    wins_.reserve(static_cast<std::size_t>(vocab));
  }

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) {
    for (node_id u = root_node;;) {
      const auto p = target.row(u);
      const chance_key in_place{u, 0, purpose::residual};
      if (tree.is_leaf(u)) return {u, chance.pick(p, in_place)};
      const auto q = draft.row(u);
      drawn_.clear();
      for (const node_id child : tree.draws(u))
        drawn_.push_back(tree.token[child]);
      token_id token = compete(p, q, drawn_);
      const auto winner = static_cast<std::size_t>(token);
      if (!chance.accept(p[winner], wins_[winner], {u, 0, purpose::accept})) {
        for (std::size_t t = 0; t < wins_.size(); ++t)
          wins_[t] = (std::max)(0.0, p[t] - wins_[t]);
        token = chance.pick(std::span<const double>(wins_), in_place);
        if (token < 0) token = chance.pick(p, in_place);  // nothing is left but for rounding
      }
      const node_id child = tree.find_child(u, token);
      if (child == no_node) return {u, token};
      u = child;
    }
  }

  // Returns the winner of some draws, and fills wins() with the probability of each token to win so many draws.
  template <class RowT>
  token_id compete(const RowT& p, const RowT& q, std::span<const token_id> draws) {
    const auto loses = [&](token_id a, token_id b) {
      const auto i = static_cast<std::size_t>(a), j = static_cast<std::size_t>(b);
      const double of_a = static_cast<double>(p[i]) / q[i], of_b = static_cast<double>(p[j]) / q[j];
      return of_a != of_b ? of_a < of_b : a < b;
    };
    order_.clear();
    wins_.assign(p.size(), 0);
    double total = 0;
    for (std::size_t t = 0; t < q.size(); ++t) {
      if (q[t] > 0) order_.push_back(static_cast<token_id>(t));
      total += q[t];
    }
    std::sort(order_.begin(), order_.end(), loses);
    // A token wins if no draw is better, and not all are worse.
    const auto n = static_cast<double>(draws.size());
    double up_to = 0, all_worse = 0;
    for (const token_id t : order_) {
      up_to += q[static_cast<std::size_t>(t)] / total;
      const double none_better = std::pow(up_to, n);
      wins_[static_cast<std::size_t>(t)] = none_better - all_worse;
      all_worse = none_better;
    }
    return *std::max_element(draws.begin(), draws.end(), loses);
  }
  std::span<const double> wins() const { return wins_; }

 private:
  std::vector<token_id> drawn_, order_;
  std::vector<double> wins_;
};

// For each draw of a list: the probability that best_ratio emits its token. The program nde asks for it.
template <class NumberT>
std::vector<double> branching_probabilities(best_ratio verifier, std::span<const NumberT> p, std::span<const NumberT> q,
                                            std::span<const token_id> list) {
  if (list.empty()) return {};
  const token_id winner = verifier.compete(p, q, list);
  const std::span<const double> wins = verifier.wins();
  const auto left = [&](std::size_t t) { return (std::max)(0.0, p[t] - wins[t]); };
  double mass = 0;
  for (std::size_t t = 0; t < p.size(); ++t)
    mass += left(t);
  const auto w = static_cast<std::size_t>(winner);
  const double accepted = p[w] > 0 ? (std::min)(1.0, p[w] / wins[w]) : 0.0;
  std::vector<double> result;
  for (const token_id token : list) {
    const auto t = static_cast<std::size_t>(token);
    const double instead = mass > 0 ? left(t) / mass : static_cast<double>(p[t]);
    result.push_back((token == winner ? accepted : 0.0) + (1 - accepted) * instead);
  }
  return result;
}

inline constexpr auto parts = boost::hana::make_tuple(
    part<entropy_tree, entropy_tree_options>{"entropy-tree", "more draws where the draft is unsure, fewer far down"},
    part<best_ratio>{"best-ratio", "test the draw that the target likes best"});

}  // namespace own
