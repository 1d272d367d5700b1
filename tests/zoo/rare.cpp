// SPDX-License-Identifier: BSL-1.0
// Verifiers and policies that are wrong in rare cases alone: far below the root, at high numbers of nodes or tokens,
// with tiny probabilities, after many rounds. check_lossless() with its defaults must find every one.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/concepts/round_start.hpp"
#include "espalier/testing/lossless.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/walk/residual.hpp"
#include "zoo/zoo.hpp"

using namespace espalier;
using testing::check_lossless;

namespace {

enum class slip {
  none,
  depth_9,          // from depth 9 on there is no residual
  depth_7,          // accepts a little more often at depth 7
  node_20,          // from node 20 on there is no residual
  node_70,          // from node 70 on there is no residual
  node_mask,        // a mask of 64 bits has no room for node 64
  leaf_depth_9,     // after a leaf at depth 9 or below the token is drawn from the parent's row
  large_trees,      // in trees of more than 18 draws the first draw of each node is accepted
  depth_keys,       // all depths from 12 on share one key
  node_keys,        // nodes 16 and 0 share one key
  token_16,         // the residual has its first 16 tokens alone
  best_32,          // the residual has the 32 most probable tokens alone
  loop_of_8,        // a loop over 8 tokens at a time leaves out the last ones
  byte_tokens,      // tokens are kept in bytes
  short_tokens,     // tokens are kept in 16 bits
  last_token,       // the last token of a vocabulary of more than 32 is always accepted
  tiny_target,      // tokens to which the target gives less than 1e-4 are never written
  tiny_draft,       // tokens to which the draft gives less than 1e-5 are always accepted
  tiny_residual,    // where less than 1e-6 of the target is left, its whole row is taken instead
  small_residual,   // where less than 1e-3 of the target is left, its whole row is taken instead
  draw_7,           // the residual forgets the seventh draw
  third_draw_deep,  // the residual forgets the third draw below the root
  thrice            // the residual forgets a token that was drawn three times, below the root
};

// SpecInfer that tests the draws of a node in order, except for the slip.
struct slipping_walk {
  static constexpr regime lossless = regime::iid | regime::single_path;
  slip wrong = slip::none;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) const {
    for (node_id u = root_node;;) {
      const auto p = target.row(u);
      if (tree.is_leaf(u)) {
        const node_id from = is(slip::leaf_depth_9) && tree.depth[u] >= 9 ? tree.parent[u] : u;
        return {u, kept(chance.pick(target.row(from), {u, 0, purpose::residual}))};
      }
      const token_id t = choose(tree, u, p, draft.row(u), chance);
      const node_id child = tree.find_child(u, t);
      if (is(slip::node_mask) && child > 63) return {u, chance.pick(p, {u, 0, purpose::token})};
      if (child == no_node) return {u, t};
      u = child;
    }
  }

 private:
  bool is(slip s) const { return wrong == s; }

  token_id kept(token_id t) const { return is(slip::byte_tokens) ? t % 256 : is(slip::short_tokens) ? t % 65'536 : t; }

  template <class RowT, class DraftRowT, class ChanceT>
  token_id choose(tree_view tree, node_id u, const RowT& p, const DraftRowT& q, ChanceT& chance) const {
    residual rest(p, q);
    std::int32_t i = 0;
    std::vector<token_id> seen;
    for (const node_id child : tree.draws(u)) {
      const token_id t = tree.token[child];
      const auto x = static_cast<std::size_t>(t);
      chance_key at{u, i++, purpose::accept};
      if (is(slip::node_keys)) at.node = u % 16;
      if (is(slip::depth_keys)) at.node = (std::min)(tree.depth[u], 12);
      const double qx = static_cast<double>(q[x]), px = static_cast<double>(p[x]);
      double r = static_cast<double>(rest.at(x));
      if (is(slip::depth_7) && tree.depth[u] == 7) r += 1e-3;
      if (is(slip::tiny_target) && px < 1e-4) r = 0;
      if ((is(slip::tiny_draft) && qx < 1e-5) || (is(slip::last_token) && x > 31 && x + 1 == p.size()) ||
          (is(slip::large_trees) && tree.n_draws > 18 && px > 0))
        r = qx;
      if (chance.accept(r, qx, at)) return t;
      seen.push_back(t);
      const bool is_deep = tree.depth[u] > 0;
      const bool forgets = (is(slip::draw_7) && i == 7) || (is(slip::third_draw_deep) && is_deep && i == 3) ||
                           (is(slip::thrice) && is_deep && std::count(seen.begin(), seen.end(), t) == 3);
      if (!forgets && rest.take(1) == 0) break;
    }
    return last(tree, u, p, rest, chance);
  }

  template <class RowT, class RestT, class ChanceT>
  token_id last(tree_view tree, node_id u, const RowT& p, const RestT& rest, ChanceT& chance) const {
    const chance_key at{u, 0, purpose::residual};
    std::vector<double> sorted(p.begin(), p.end()), weights;
    std::sort(sorted.rbegin(), sorted.rend());
    const double least = sorted[(std::min)(std::size_t{31}, p.size() - 1)];
    double left = 0;
    for (std::size_t t = 0; t < p.size(); ++t) {
      const bool is_lost = (is(slip::token_16) && t >= 16) ||
                           (is(slip::best_32) && static_cast<double>(p[t]) < least) ||
                           (is(slip::loop_of_8) && p.size() >= 16 && t >= p.size() / 8 * 8) ||
                           (is(slip::tiny_target) && static_cast<double>(p[t]) < 1e-4);
      weights.push_back(is_lost ? 0 : static_cast<double>(rest[t]));
      left += weights.back();
    }
    if ((is(slip::depth_9) && tree.depth[u] >= 9) || (is(slip::node_20) && u >= 20) || (is(slip::node_70) && u >= 70) ||
        (is(slip::tiny_residual) && left < 1e-6) || (is(slip::small_residual) && left < 1e-3))
      return chance.pick(p, at);
    const token_id t = chance.pick(std::span<const double>(weights), at);
    return kept(t < 0 ? chance.pick(p, at) : t);
  }
};

// Tests draws without replacement one after the other; the draft's row has its full mass again after each draw, but for
// the fifth and later ones if it forgets them.
struct distinct_walk {
  static constexpr regime lossless = regime::without_replacement | regime::single_path;
  bool forgets = false;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) const {
    for (node_id u = root_node;;) {
      const auto p = target.row(u);
      std::vector<double> left(p.begin(), p.end()), q(p.size());
      node_id next = no_node;
      std::int32_t i = 0;
      if (!tree.is_leaf(u)) std::copy(draft.row(u).begin(), draft.row(u).end(), q.begin());
      for (const node_id child : tree.draws(u)) {
        const auto x = static_cast<std::size_t>(tree.token[child]);
        if (chance.accept(left[x], q[x], {u, i++, purpose::accept})) {
          next = child;
          break;
        }
        for (std::size_t t = 0; t < q.size(); ++t)
          left[t] = (std::max)(0.0, left[t] - q[t]);
        left[x] = 0;
        q[x] = 0;
        scale(left);
        if (!forgets || i < 4) scale(q);
      }
      if (next == no_node) {
        token_id t = chance.pick(std::span<const double>(left), {u, 0, purpose::residual});
        if (t < 0) t = chance.pick(p, {u, 0, purpose::residual});  // nothing is left but for rounding
        next = tree.find_child(u, t);
        if (next == no_node) return {u, t};
      }
      u = next;
    }
  }

 private:
  static void scale(std::vector<double>& row) {
    double total = 0;
    for (const double x : row)
      total += x;
    for (double& x : row)
      x = total > 0 ? x / total : 0;
  }
};

enum class habit {
  none,
  stops_at_17,         // stops drawing at a node once token 17 was drawn
  stops_at_unlikely,   // stops drawing at a node once an unlikely token was drawn
  stops_after_rounds,  // from the 31st round on it stops drawing once a likely token was drawn
  stops_accepted,      // does so once 40 rounds have accepted something
  stops_in_long,       // does so in texts of more than 1000 tokens
  stops_if_hot,        // does so where the target's temperature is not 1
  sharpens_if_cold,    // draws from the squares of the row where the temperature is below 1
  best_50,             // draws from the 50 most probable tokens
  keeps_likelier       // where not all picks have room, it drops those of a node whose first one is unlikely
};

// Independent draws, two at a node to depth 2, except for the habit.
struct habitual_policy {
  static constexpr regime sampling = regime::iid;
  static constexpr std::int32_t budget = 4;

  habit wrong = habit::none;
  int rounds = 0, accepted = 0;
  round_start start{};
  std::vector<node_id> wanted{};

  std::int32_t max_nodes() const { return budget; }
  void open(const round_start& now) { start = now; }
  void observe(tree_view, verdict v) { ++rounds, accepted += v.accepted != root_node ? 1 : 0; }

  std::span<const node_id> begin(tree<>& tree) {
    wanted.assign(1, root_node);
    return tree.left(budget) == 0 ? std::span<const node_id>() : std::span<const node_id>(wanted);
  }

  template <class NumberT, class ChanceT>
  std::span<const node_id> take(tree<>& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    std::vector<std::vector<token_id>> picks;
    std::int32_t n_picks = 0;
    for (const node_id u : wanted) {
      picks.push_back(pick(rows.row(u), u, (std::min)(2, tree.left(budget)), chance));
      n_picks += static_cast<std::int32_t>(picks.back().size());
    }
    if (is(habit::keeps_likelier) && n_picks > tree.left(budget) && picks.size() > 1 && !picks[0].empty() &&
        rows.row(wanted[0])[static_cast<std::size_t>(picks[0][0])] < NumberT(0.2)) {
      std::swap(picks[0], picks[1]), std::swap(wanted[0], wanted[1]);
    }
    std::vector<node_id> next;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      for (const token_id t : picks[i]) {
        if (tree.left(budget) == 0) break;
        const std::int32_t before = tree.size();
        const node_id child =
            tree.draw(wanted[i], t, static_cast<float>(std::log(rows.row(wanted[i])[static_cast<std::size_t>(t)])));
        if (child >= before && tree.view().depth[child] < 2) next.push_back(child);
      }
    }
    wanted = next;
    return tree.left(budget) == 0 ? std::span<const node_id>() : std::span<const node_id>(wanted);
  }

 private:
  bool is(habit h) const { return wrong == h; }

  template <class RowT, class ChanceT>
  std::vector<token_id> pick(const RowT& q, node_id u, std::int32_t n, ChanceT& chance) const {
    std::vector<double> weights(q.begin(), q.end()), sorted = weights;
    std::sort(sorted.rbegin(), sorted.rend());
    for (double& w : weights) {
      if (is(habit::best_50) && w < sorted[(std::min)(std::size_t{49}, sorted.size() - 1)]) w = 0;
      if (is(habit::sharpens_if_cold) && start.sampling.temperature < 1) w *= w;
    }
    const bool stops_at_likely = (is(habit::stops_after_rounds) && rounds >= 30) ||
                                 (is(habit::stops_accepted) && accepted >= 40) ||
                                 (is(habit::stops_in_long) && start.length > 1000) ||
                                 (is(habit::stops_if_hot) && start.sampling.temperature != 1);
    std::vector<token_id> picks;
    for (std::int32_t i = 0; i < n; ++i) {
      const token_id t = chance.pick(std::span<const double>(weights), {u, i, purpose::draft});
      if (t < 0) break;
      picks.push_back(t);
      const double p = static_cast<double>(q[static_cast<std::size_t>(t)]);
      if ((stops_at_likely && p > 0.4) || (is(habit::stops_at_17) && t == 17) ||
          (is(habit::stops_at_unlikely) && p < 1e-3))
        break;
    }
    return picks;
  }
};

}  // namespace

TEST_CASE("verifiers that are biased in rare cases alone are found") {
  const sampled_chain policy({.length = 2});
  CHECK(check_lossless(policy, slipping_walk()).complete());
  int found = 0;
  const auto find = [&](const char* bias, slip wrong, const char* told = "the verifier is not lossless for trees") {
    found += find_bias(bias, told, [&] { check_lossless(policy, slipping_walk{wrong}); });
  };
  find("no residual from depth 9 on", slip::depth_9);
  find("a little more is accepted at depth 7", slip::depth_7);
  find("no residual from node 20 on", slip::node_20);
  find("no residual from node 70 on", slip::node_70);
  find("a mask of 64 nodes", slip::node_mask);
  find("the parent's row after a leaf below depth 8", slip::leaf_depth_9);
  find("the first draw of each node in large trees", slip::large_trees);
  find("one key for all depths from 12 on", slip::depth_keys, "two things with one key");
  find("one key for nodes 0 and 16", slip::node_keys, "two things with one key");
  find("the residual of the first 16 tokens", slip::token_16);
  find("the residual of the best 32 tokens", slip::best_32);
  find("a loop over 8 tokens at a time", slip::loop_of_8);
  find("tokens in bytes", slip::byte_tokens);
  find("tokens in 16 bits", slip::short_tokens);
  find("the last token of a large vocabulary", slip::last_token);
  find("tokens of less than 1e-4 are never written", slip::tiny_target);
  find("tokens drawn with less than 1e-5 are accepted", slip::tiny_draft);
  find("no residual of less than 1e-6", slip::tiny_residual);
  find("no residual of less than 1e-3", slip::small_residual);
  find("the residual forgets the seventh draw", slip::draw_7);
  find("the residual forgets the third draw below the root", slip::third_draw_deep);
  find("the residual forgets what was drawn thrice below the root", slip::thrice);
  CHECK_NOTHROW(check_lossless(policy, distinct_walk()));
  found += find_bias("without replacement: from the fifth draw on mass is missing",
                     "the verifier is not lossless for trees that are drawn without replacement, with draws",
                     [&] { check_lossless(policy, distinct_walk{true}); });
  std::cout << found << " verifiers found that are wrong in rare cases\n";
  CHECK(found == 23);
}

TEST_CASE("policies that draw wrongly in rare cases alone are found") {
  CHECK(check_lossless(habitual_policy(), specinfer()).complete());
  int found = 0;
  const auto find = [&](const char* bias, habit wrong, const char* told = "the pair is not lossless") {
    found += find_bias(bias, told, [&] { check_lossless(habitual_policy{wrong}, specinfer()); });
  };
  find("no further draw after token 17", habit::stops_at_17);
  find("no further draw after an unlikely one", habit::stops_at_unlikely);
  find("no further draw after a likely one, after 30 rounds", habit::stops_after_rounds);
  find("no further draw after a likely one, after 40 acceptances", habit::stops_accepted);
  find("no further draw after a likely one, in long texts", habit::stops_in_long);
  find("no further draw after a likely one, above temperature 1", habit::stops_if_hot);
  find("draws from the row's squares below temperature 1", habit::sharpens_if_cold, "not the drafter's row");
  find("draws from the 50 most probable tokens", habit::best_50, "not the drafter's row");
  find("drops unlikely picks where not all have room", habit::keeps_likelier);
  std::cout << found << " policies found that draw wrongly in rare cases\n";
  CHECK(found == 9);
}
