// SPDX-License-Identifier: BSL-1.0
// Verifiers that are biased, each in a way that looks right: check_lossless() with its defaults must find every one,
// whatever policy it is called with.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "espalier/testing/lossless.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/iid_paths.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/khisti.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/spectr.hpp"
#include "espalier/verifier/traversal.hpp"
#include "espalier/verifier/walk/residual.hpp"
#include "zoo/zoo.hpp"

using namespace espalier;

namespace {

enum class flaw {
  none,
  one_key,               // tests all draws of a node with one random number
  third_draw,            // the residual forgets the third draw
  deep_residual,         // from depth 4 on the token after a rejection is drawn from the target's row
  no_residual,           // the token after a rejection is drawn from the target's row
  residual_not_updated,  // every draw is tested against the target's row
  first_residual,        // the residual forgets all draws but the first
  accepts_likelier,      // accepts where p >= q and never else
  inverted,              // accepts with probability q / p
  accepts_first,         // accepts the first draw of each node
  typical,               // accepts tokens that the target gives more than 0.3
  best_two,              // accepts the two most probable tokens of the target
  leaf_of_draft,         // after a leaf the token is drawn from the draft's row of its parent
  leaf_of_parent,        // after a leaf the token is drawn from the target's row of its parent
  smoothed,              // adds a little to every weight of the residual
  shifted,               // compares with the draft's probability of the next token
  sharpened,             // draws the last token from the squares of the residual
  argmax_last,           // the last token is the most probable one of the residual
  stateful,              // accepts the first draw of every fourth round
  once,                  // passes over repeated draws
  reversed_residual,     // the residual is (q - p)+
  halved,                // accepts with half the probability that it may
  skips_second,          // never tests the second draw, but subtracts it
  no_child,              // after a rejection the token is drawn from the target's row without the node's children
  key_of_draft           // decides with the purpose of a draft
};

// SpecInfer that tests the draws of a node in order: lossless for independent draws, except for the flaw.
template <regime Lossless = regime::iid | regime::single_path>
struct flawed_walk {
  static constexpr regime lossless = Lossless;
  flaw wrong = flaw::none;
  int round = 0;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) {
    ++round;
    for (node_id u = root_node;;) {
      const auto p = target.row(u);
      if (tree.is_leaf(u)) {
        const node_id parent = u == root_node ? u : tree.parent[u];
        const chance_key at{u, 0, purpose::residual};
        if (is(flaw::leaf_of_parent)) return {u, chance.pick(target.row(parent), at)};
        if (is(flaw::leaf_of_draft) && u != root_node) return {u, chance.pick(draft.row(parent), at)};
        return {u, chance.pick(p, at)};
      }
      const token_id t = choose(tree, u, p, draft.row(u), chance);
      const node_id child = tree.find_child(u, t);
      if (child == no_node) return {u, t};
      u = child;
    }
  }

 private:
  bool is(flaw f) const { return wrong == f; }

  template <class RowT, class DraftRowT, class ChanceT>
  token_id choose(tree_view tree, node_id u, const RowT& p, const DraftRowT& q, ChanceT& chance) const {
    residual rest(p, q);
    std::int32_t i = 0;
    std::vector<token_id> seen;
    for (const node_id child : tree.draws(u)) {
      const token_id t = tree.token[child];
      const bool repeated = std::find(seen.begin(), seen.end(), t) != seen.end();
      if (is(flaw::once) && repeated) continue;
      seen.push_back(t);
      const bool skipped = is(flaw::skips_second) && i == 1;
      if (!skipped && accepts(p, q, rest, static_cast<std::size_t>(t), chance, u, i)) return t;
      const bool forgets =
          is(flaw::residual_not_updated) || (is(flaw::third_draw) && i == 2) || (is(flaw::first_residual) && i > 0);
      ++i;
      if (!forgets && rest.take(1) == 0) break;
    }
    return last(tree, u, p, q, rest, chance);
  }

  template <class RowT, class DraftRowT, class RestT, class ChanceT>
  bool accepts(const RowT& p, const DraftRowT& q, const RestT& rest, std::size_t x, ChanceT& chance, node_id u,
               std::int32_t i) const {
    const purpose use = is(flaw::key_of_draft) ? purpose::draft : purpose::accept;
    const chance_key at{u, is(flaw::one_key) ? 0 : i, use};
    const double r = rest.at(x), px = static_cast<double>(p[x]), qx = static_cast<double>(q[x]);
    if (is(flaw::accepts_likelier)) return px >= qx;
    if (is(flaw::inverted)) return chance.accept(qx, px, at);
    if (is(flaw::accepts_first)) return px > 0;
    if (is(flaw::stateful) && round % 4 == 0) return px > 0;
    if (is(flaw::typical)) return px > 0.3;
    if (is(flaw::best_two)) {
      return std::count_if(p.begin(), p.end(), [&](auto other) { return static_cast<double>(other) > px; }) < 2 &&
             px > 0;
    }
    if (is(flaw::halved)) return chance.accept(r / 2, qx, at);
    if (is(flaw::shifted)) return chance.accept(r, static_cast<double>(q[(x + 1) % q.size()]), at);
    return chance.accept(r, qx, at);
  }

  template <class RowT, class DraftRowT, class RestT, class ChanceT>
  token_id last(tree_view tree, node_id u, const RowT& p, const DraftRowT& q, const RestT& rest,
                ChanceT& chance) const {
    const chance_key at{u, 0, purpose::residual};
    if (is(flaw::no_residual) || (is(flaw::deep_residual) && tree.depth[u] >= 4)) return chance.pick(p, at);
    std::vector<double> weights;
    for (std::size_t t = 0; t < p.size(); ++t) {
      double w = static_cast<double>(rest[t]);
      if (is(flaw::smoothed)) w += 1e-3;
      if (is(flaw::sharpened)) w *= w;
      if (is(flaw::reversed_residual)) w = std::max(0.0, static_cast<double>(q[t]) - static_cast<double>(p[t]));
      if (is(flaw::no_child))
        w = tree.find_child(u, static_cast<token_id>(t)) != no_node ? 0 : static_cast<double>(p[t]);
      weights.push_back(w);
    }
    if (is(flaw::argmax_last))
      return static_cast<token_id>(std::max_element(weights.begin(), weights.end()) - weights.begin());
    const token_id t = chance.pick(std::span<const double>(weights), at);
    return t < 0 ? chance.pick(p, at) : t;
  }
};

// The verifier of another regime.
template <class VerifierT, regime Said>
struct said_to_be : VerifierT {
  static constexpr regime lossless = Said;
};

// Follows the target's second most probable token where a child has it.
struct second_best {
  static constexpr regime lossless = regime::any;
  static constexpr bool argmax_only = true;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT&, TargetRowsT& target, ChanceT&) const {
    for (node_id u = root_node;;) {
      const token_id best = target.argmax(u);
      const token_id second = best + 1 < static_cast<token_id>(target.row(u).size()) ? best + 1 : best - 1;
      const node_id child = tree.find_child(u, best), other = second < 0 ? no_node : tree.find_child(u, second);
      if (child == no_node && other == no_node) return {u, best};
      u = child != no_node ? child : other;
    }
  }
};

using testing::check_lossless;

}  // namespace

TEST_CASE("biased verifiers are found, and over which trees") {
  const sampled_chain policy({.length = 2});
  // The same code without a flaw is lossless.
  const testing::coverage covered = check_lossless(policy, flawed_walk<>());
  CHECK(covered.complete());
  CHECK(covered.largest_difference < 1e-12);
  std::cout << covered;
  int found = 0;
  const auto find = [&](const char* bias, flaw wrong, const char* told = "the verifier is not lossless for trees") {
    found += find_bias(bias, told, [&] { check_lossless(policy, flawed_walk<>{wrong}); });
  };
  find("all draws of a node tested with one random number", flaw::one_key, "two things with one key");
  find("the residual forgets the third draw", flaw::third_draw);
  find("no residual from depth 4 on", flaw::deep_residual);
  find("no residual", flaw::no_residual);
  find("each draw is tested against the target's row", flaw::residual_not_updated);
  find("the residual forgets all draws but the first", flaw::first_residual);
  find("accepts where p >= q", flaw::accepts_likelier);
  find("accepts with q / p", flaw::inverted);
  find("accepts the first draw", flaw::accepts_first);
  find("typical acceptance", flaw::typical);
  find("accepts the target's best two", flaw::best_two);
  find("the draft's row after a leaf", flaw::leaf_of_draft);
  find("the parent's row after a leaf", flaw::leaf_of_parent);
  find("a little more for every weight of the residual", flaw::smoothed);
  find("the draft's probability of the next token", flaw::shifted);
  find("the squares of the residual", flaw::sharpened);
  find("the best token of the residual", flaw::argmax_last);
  find("every fourth round is another", flaw::stateful);
  find("repeated draws passed over", flaw::once);
  find("the residual is (q - p)+", flaw::reversed_residual);
  find("accepts half as often as it may", flaw::halved);
  find("the second draw is never tested", flaw::skips_second);
  find("the target's row without the children", flaw::no_child);
  find("decides with the purpose of a draft", flaw::key_of_draft, "for a purpose that is draft");
  const auto check = [&](const char* bias, auto verifier) {
    found += find_bias(bias, "the verifier is not lossless for trees",
                       [&] { check_lossless(chain({.length = 2}), verifier); });
  };
  check("specinfer for trees of best tokens", said_to_be<specinfer, regime::any>());
  check("the residual walk for trees of best tokens", said_to_be<residual_walk, regime::deterministic>());
  check("a greedy verifier that follows the second best", second_best());
  const auto check_drawn = [&](const char* bias, auto verifier) {
    found += find_bias(bias, "the verifier is not lossless for trees",
                       [&] { check_lossless(sampled_chain({.length = 2}), verifier); });
  };
  check_drawn("traversal for draws without replacement",
              said_to_be<traversal, regime::without_replacement | regime::single_path>());
  check_drawn("SpecTr for draws without replacement",
              said_to_be<spectr, regime::without_replacement | regime::single_path>());
  check_drawn("Khisti's for draws without replacement",
              said_to_be<khisti, regime::without_replacement | regime::single_path>());
  std::cout << found << " biased verifiers found\n";
  CHECK(found == 30);
}
