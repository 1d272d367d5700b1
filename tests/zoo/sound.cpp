// SPDX-License-Identifier: BSL-1.0
// Parts that are unusual and lossless: check_lossless() must let every one pass.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <span>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/testing/lossless.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/iid_paths.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/traversal.hpp"

using namespace espalier;
using testing::check_lossless;

namespace {

enum class way {
  random_number,  // the number of a node's draws is random, and decided before they are made
  by_own_token,   // the number of a node's draws depends on its own token
  late,           // all picks of a level are made before the first is recorded
  breadth_first,  // first draws are recorded before second ones, so that a full tree lacks some of these
  once_below,     // nothing is drawn below a token that was drawn twice
};

// Draws two at a node to depth 2, in its own way.
template <regime Sampling>
struct unusual_policy {
  static constexpr regime sampling = Sampling;
  static constexpr std::int32_t budget = 4;

  way how;
  std::vector<node_id> wanted{};

  std::int32_t max_nodes() const { return budget; }
  void observe(tree_view, verdict) {}

  std::span<const node_id> begin(tree<>& tree) {
    wanted.assign(1, root_node);
    return tree.full() ? std::span<const node_id>() : std::span<const node_id>(wanted);
  }

  template <class NumberT, class ChanceT>
  std::span<const node_id> take(tree<>& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    std::vector<node_id> next;
    std::vector<std::pair<node_id, token_id>> picks, second;
    for (const node_id u : wanted) {
      std::int32_t n = 2;
      if (how == way::random_number) n = 1 + chance.index(2, {u, 9, purpose::draft});
      if (how == way::by_own_token) n = 1 + tree.view().token[u] % 2;
      std::vector<NumberT> weights(rows.row(u).begin(), rows.row(u).end());
      for (std::int32_t i = 0; i < n; ++i) {
        if (how != way::late && how != way::breadth_first && tree.left(budget) == 0) break;
        const token_id t = chance.pick(std::span<const NumberT>(weights), {u, i, purpose::draft});
        if (t < 0) break;
        if (Sampling == regime::without_replacement) weights[static_cast<std::size_t>(t)] = 0;
        (how == way::breadth_first && i == 1 ? second : picks).push_back({u, t});
        if (how != way::late && how != way::breadth_first) record(tree, rows, picks, next);
      }
    }
    record(tree, rows, picks, next);
    record(tree, rows, second, next);
    wanted = next;
    return tree.left(budget) == 0 ? std::span<const node_id>() : std::span<const node_id>(wanted);
  }

 private:
  template <class RowsT>
  void record(tree<>& tree, const RowsT& rows, std::vector<std::pair<node_id, token_id>>& picks,
              std::vector<node_id>& next) const {
    for (const auto& [u, t] : picks) {
      if (tree.left(budget) == 0) break;
      const std::int32_t before = tree.size();
      const node_id child = tree.draw(u, t, static_cast<float>(std::log(rows.row(u)[static_cast<std::size_t>(t)])));
      if (child >= before && tree.view().depth[child] < 2) next.push_back(child);
      if (child < before && how == way::once_below) std::erase(next, child);
    }
    picks.clear();
  }
};

// Asks about the nodes of two draws, and keeps the first draw alone.
struct rebuilding_policy {
  static constexpr regime sampling = regime::iid;
  std::vector<node_id> wanted{}, before{};

  std::int32_t max_nodes() const { return 1; }
  std::int32_t max_asked() const { return 3; }
  std::span<const node_id> was() const { return before; }
  void observe(tree_view, verdict) {}

  std::span<const node_id> begin(tree<>& tree) {
    before.clear();
    wanted.assign(1, root_node);
    return tree.full() ? std::span<const node_id>() : std::span<const node_id>(wanted);
  }
  template <class NumberT, class ChanceT>
  std::span<const node_id> take(tree<>& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    if (tree.size() == 1) {
      const token_id t = chance.pick(rows.row(root_node), {root_node, 0, purpose::draft});
      wanted[0] =
          tree.draw(root_node, t, static_cast<float>(std::log(rows.row(root_node)[static_cast<std::size_t>(t)])));
      return wanted;
    }
    const tree_view grown = tree;
    const token_id root = grown.token[0], child = grown.token[1];
    const float log_prob = grown.log_prob[1];
    tree.reset(root, tree.limit());
    tree.draw(root_node, child, log_prob);
    before = {0, 1};
    return {};
  }
};

// Accepts nothing: the target's token may be one that the tree has.
struct root_alone {
  static constexpr regime lossless = regime::any;
  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view, const DraftRowsT&, TargetRowsT& target, ChanceT& chance) const {
    return {root_node, chance.pick(target.row(root_node), {root_node, 0, purpose::residual})};
  }
};

// Draws the target's own tokens, and asks for no row of which it does not need.
struct target_first {
  static constexpr regime lossless = regime::any;
  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT&, TargetRowsT& target, ChanceT& chance) const {
    for (node_id u = root_node;;) {
      const token_id t = chance.pick(target.row(u), {tree.depth[u], 0, purpose::token});
      const node_id child = tree.find_child(u, t);
      if (child == no_node) return {u, t};
      u = child;
    }
  }
};

using iid_policy = unusual_policy<regime::iid>;
using distinct_policy = unusual_policy<regime::without_replacement>;

}  // namespace

TEST_CASE("parts that are unusual and lossless pass") {
  const auto passes = [](const char* what, const auto& policy, const auto& verifier) {
    INFO(what);
    CHECK_NOTHROW(check_lossless(policy, verifier));
  };
  passes("a random number of draws", iid_policy{way::random_number}, specinfer());
  passes("a number of draws that depends on the node's own token", iid_policy{way::by_own_token}, specinfer());
  passes("all picks of a level are made before the first is recorded", iid_policy{way::late}, specinfer());
  passes("so without replacement", distinct_policy{way::late}, residual_walk());
  passes("first draws are recorded before second ones", iid_policy{way::breadth_first}, traversal());
  passes("so without replacement", distinct_policy{way::breadth_first}, residual_walk());
  passes("nothing is drawn below a token that was drawn twice", iid_policy{way::once_below}, specinfer());
  passes("a policy that builds its tree anew", rebuilding_policy(), specinfer());
  passes("a policy that drafts nothing", plain(), specinfer());
  passes("a budget of no tokens", sampled_chain({.length = 0}), specinfer());
  passes("a verifier that accepts nothing", iid_paths({.paths = 2, .length = 1}), root_alone());
  passes("a verifier that asks for rows as it needs them", iid_paths({.paths = 2, .length = 1}), target_first());
  passes("the same for the most probable tokens", chain({.length = 2}), target_first());
}

TEST_CASE("rows in float are compared with the tolerance that they need") {
  CHECK_NOTHROW(check_lossless<float>(iid_paths({.paths = 2, .length = 1}), specinfer()));
  CHECK_NOTHROW(check_lossless<float>(distinct_policy{way::late}, residual_walk()));
}
