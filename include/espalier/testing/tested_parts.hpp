// SPDX-License-Identifier: BSL-1.0
// Tested by tests/testing/lossless.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/round_start.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/decoder/check_growth.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/testing/law_error.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/testing/traced_chance.hpp"

namespace espalier::testing::detail {

// The target's rows of a round, found by node.
template <class NumberT>
struct target_rows {
  std::vector<std::vector<NumberT>> rows;
  std::span<const NumberT> row(node_id u) const { return rows[static_cast<std::size_t>(u)]; }
  token_id argmax(node_id u) const {
    const auto r = row(u);
    return static_cast<token_id>(std::max_element(r.begin(), r.end()) - r.begin());
  }
};

// A policy of any type behind one interface, so that the checks are compiled once, and not once for each pair of parts.
template <class NumberT>
class tested_policy {
 public:
  virtual ~tested_policy() = default;
  virtual std::unique_ptr<tested_policy> copy() const = 0;
  virtual std::int32_t max_nodes() const = 0;
  virtual std::int32_t most_asked() const = 0;
  // Grows the tree of a round, which has only its root at first. tested_policy_of also checks the tree, if the chance
  // draws at random.
  virtual void grow(tree<>& tree, basic_row_drafter<NumberT>& drafter, traced_chance& chance,
                    const round_start& start) = 0;
  virtual void observe(tree_view tree, verdict v) = 0;
};

// Checks that the draws of each node are the tokens that the policy picked there from the drafter's row, all of them
// and in their order. `was` holds the number that each node had when the drafter was asked; it is empty if no number
// has changed since. A tree that is full may lack the tokens that were picked last.
inline void require_picks_kept(tree_view tree, const std::vector<traced_chance::picked_token>& picks,
                               std::span<const node_id> was, std::int32_t vocab, bool is_full) {
  for (node_id u = 0; u < tree.n_nodes; ++u) {
    const node_id asked = was.empty() ? u : was[static_cast<std::size_t>(u)];
    std::vector<token_id> picked;
    for (const traced_chance::picked_token& p : picks) {
      if (p.node == asked && p.n_weights == static_cast<std::size_t>(vocab)) picked.push_back(p.token);
    }
    std::size_t i = 0;
    for (const node_id child : tree.draws(u)) {
      require_law(i < picked.size(), "the policy drafts token ", tree.token[child], " at node ", u,
                  " without having picked it from the drafter's row.");
      require_law(tree.token[child] == picked[i], "the policy picks token ", picked[i], " as draw ", i, " of node ", u,
                  " and drafts token ", tree.token[child],
                  " instead: draws are kept whatever they are, in the order in which they were made.");
      ++i;
    }
    require_law(i == picked.size() || is_full, "the policy picks token ", i < picked.size() ? picked[i] : 0,
                " as draw ", i, " of node ", u, " and does not draft it, though the tree has room.");
  }
}

template <class NumberT, class PolicyT>
class tested_policy_of final : public tested_policy<NumberT> {
 public:
  explicit tested_policy_of(PolicyT policy) : policy_(std::move(policy)) {}

  std::unique_ptr<tested_policy<NumberT>> copy() const override { return std::make_unique<tested_policy_of>(*this); }
  std::int32_t max_nodes() const override { return policy_.max_nodes(); }
  std::int32_t most_asked() const override { return espalier::most_asked(policy_); }

  void grow(tree<>& tree, basic_row_drafter<NumberT>& drafter, traced_chance& chance,
            const round_start& start) override {
    if constexpr (OpeningPolicy<PolicyT>) policy_.open(start);
    espalier::grow(policy_, tree, drafter, chance);
    if constexpr (!compatible(PolicyT::sampling, regime::deterministic)) {
      std::span<const node_id> was;
      if constexpr (RebuildingPolicy<PolicyT>) was = policy_.was();
      const bool is_full = tree.left(policy_.max_nodes()) == 0;
      if (chance.draws()) require_picks_kept(tree, chance.picks(), was, drafter.vocab_size(), is_full);
    }
    if (chance.draws()) check_growth<PolicyT::sampling>(tree, drafter.rows());
  }

  void observe(tree_view tree, verdict v) override { policy_.observe(tree, v); }

  const PolicyT& policy() const { return policy_; }

 private:
  PolicyT policy_;
};

// A verifier of any type behind one interface.
template <class NumberT>
class tested_verifier {
 public:
  virtual ~tested_verifier() = default;
  virtual void reserve(std::int32_t max_nodes, std::int32_t vocab) = 0;
  virtual verdict verify(tree_view tree, const node_rows<NumberT>& draft, target_rows<NumberT>& target,
                         traced_chance& chance) = 0;
  virtual bool argmax_only() const = 0;
};

template <class NumberT, class VerifierT>
class tested_verifier_of final : public tested_verifier<NumberT> {
 public:
  explicit tested_verifier_of(VerifierT verifier) : verifier_(std::move(verifier)) {}
  void reserve(std::int32_t max_nodes, std::int32_t vocab) override { reserve_verifier(verifier_, max_nodes, vocab); }
  verdict verify(tree_view tree, const node_rows<NumberT>& draft, target_rows<NumberT>& target,
                 traced_chance& chance) override {
    return verifier_.verify(tree, draft, target, chance);
  }
  bool argmax_only() const override { return ArgmaxVerifier<VerifierT>; }

 private:
  VerifierT verifier_;
};

// A shape of trees, and the regime by which they are drawn, for checks of a verifier without a policy.
struct drawn_shape {
  regime by = regime::iid;
  std::vector<std::int32_t> draws;  // number of draws at each node of depth 0, 1, ..
  bool is_uneven = false;           // a node of token t below the root has (n + t) % (n + 1) draws in place of n

  std::int32_t at(tree_view tree, node_id u) const {
    const std::int32_t n = draws[static_cast<std::size_t>(tree.depth[u])];
    return is_uneven && u != root_node ? (n + tree.token[u]) % (n + 1) : n;
  }

  std::int32_t max_nodes() const {
    std::int32_t nodes = 1, all = 0;
    for (const std::int32_t n : draws)
      all += nodes *= n;
    return all;
  }
};

inline std::string in_words(const drawn_shape& shape) {
  std::string draws;
  for (std::size_t depth = 0, same = 1; depth < shape.draws.size(); depth += same, same = 1) {
    while (depth + same < shape.draws.size() && shape.draws[depth + same] == shape.draws[depth])
      ++same;
    draws += (depth == 0 ? "" : ", then ") + std::to_string(shape.draws[depth]) +
             (same > 1 ? " at " + std::to_string(same) + " depths" : "");
  }
  return "draws at each node of the depths from 0 on: " + draws + (shape.is_uneven ? ", less at some nodes" : "");
}

template <class NumberT>
class shape_policy final : public tested_policy<NumberT> {
 public:
  explicit shape_policy(drawn_shape shape) : shape_(std::move(shape)) {}

  std::unique_ptr<tested_policy<NumberT>> copy() const override { return std::make_unique<shape_policy>(*this); }
  std::int32_t max_nodes() const override { return shape_.max_nodes(); }
  std::int32_t most_asked() const override { return shape_.max_nodes(); }

  void grow(tree<>& tree, basic_row_drafter<NumberT>& drafter, traced_chance& chance, const round_start&) override {
    std::vector<node_id> level{root_node}, next;
    for (std::size_t depth = 0; depth < shape_.draws.size(); ++depth) {
      if (level.empty() || tree.full()) break;
      drafter.propose(tree, level);
      next.clear();
      for (const node_id u : level)
        draw(tree, drafter.rows().row(u), u, shape_.at(tree, u), chance, next);
      std::swap(level, next);
    }
  }

  void observe(tree_view, verdict) override {}

 private:
  void draw(tree<>& tree, std::span<const NumberT> row, node_id u, std::int32_t n, traced_chance& chance,
            std::vector<node_id>& next) {
    std::vector<NumberT> left(row.begin(), row.end());
    for (std::int32_t i = 0; i < n && !tree.full(); ++i) {
      const token_id t = shape_.by == regime::deterministic
                             ? largest(left)
                             : chance.pick(std::span<const NumberT>(left), {u, i, purpose::draft});
      if (t < 0) return;
      const auto at = static_cast<std::size_t>(t);
      const std::int32_t n_before = tree.size();
      const node_id child = tree.draw(u, t, static_cast<float>(std::log(static_cast<double>(row[at]))));
      if (shape_.by != regime::iid) left[at] = 0;
      if (child >= n_before) next.push_back(child);
    }
  }

  static token_id largest(const std::vector<NumberT>& weights) {
    const auto best = std::max_element(weights.begin(), weights.end());
    return *best > 0 ? static_cast<token_id>(best - weights.begin()) : -1;
  }

  drawn_shape shape_;
};

}  // namespace espalier::testing::detail
