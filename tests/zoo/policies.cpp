// SPDX-License-Identifier: BSL-1.0
// Policies that draw wrongly, each in a way that looks right: check_lossless() with its defaults must find every one,
// and say where.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/concepts/round_start.hpp"
#include "espalier/testing/lossless.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/traversal.hpp"
#include "zoo/zoo.hpp"

using namespace espalier;

namespace {

enum class flaw {
  none,
  drops_unlikely,       // keeps a drawn token only if it is likely
  best_eight,           // draws from the eight most probable tokens
  likelier_of_two,      // draws two tokens and keeps the likelier
  learnt_rejection,     // does so after three rejections
  learnt_acceptance,    // does so after four rounds that accepted something
  near_the_end,         // does so for the last token where the context leaves less room than the budget
  long_texts,           // does so in texts of more than 100 tokens
  odd_depth,            // does so at depth 1 only
  argmax,               // drafts the most probable token and says that it was drawn
  adds_argmax,          // drafts the most probable token beside the draws
  sharpened,            // draws from the squares of the row
  flattened,            // draws from the roots of the row
  uniform,              // draws any token that the row can give
  parents_row,          // draws from the row of the parent
  first_row,            // draws every token from the root's row
  sorted,               // records the draws of a node by their probability
  once,                 // drops a repeated draw
  stops_when_likely,    // stops drawing at a node once a likely token was drawn
  stops_when_repeated,  // stops drawing at a node once a token came twice
  same_key,             // makes all draws of a node with one key
  other_purpose,        // draws with the key of an acceptance
  without_best,         // never draws the most probable token first
  not_the_last,         // never drafts the token of the node itself again
  cut_mass,             // draws from tokens of 0.9 of the mass, as top-p does
  swapped_siblings      // records a draw of one node at another
};

// Independent draws, two at a node to depth 2, except for the flaw.
template <regime Sampling = regime::iid>
struct flawed_policy {
  static constexpr regime sampling = Sampling;
  static constexpr std::int32_t budget = 4;

  flaw wrong = flaw::none;
  int rejected = 0, accepted = 0;
  std::int32_t length = 0;
  std::vector<node_id> wanted{}, next{};

  std::int32_t max_nodes() const { return budget; }
  void open(const round_start& start) { length = start.length; }

  std::span<const node_id> begin(tree<>& tree) {
    wanted.assign(1, root_node);
    return tree.left(budget) == 0 ? std::span<const node_id>() : std::span<const node_id>(wanted);
  }

  template <class NumberT, class ChanceT>
  std::span<const node_id> take(tree<>& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    next.clear();
    for (const node_id u : wanted)
      draw(tree, rows, chance, u);
    std::swap(wanted, next);
    return tree.left(budget) == 0 ? std::span<const node_id>() : std::span<const node_id>(wanted);
  }

  void observe(tree_view, verdict v) { ++(v.accepted == root_node ? rejected : accepted); }

 private:
  bool is(flaw f) const { return wrong == f; }

  // True if the flaw is to draw two tokens and to keep the likelier, here.
  bool takes_likelier(const tree<>& tree, node_id u) const {
    return is(flaw::likelier_of_two) || (is(flaw::learnt_rejection) && rejected >= 3) ||
           (is(flaw::learnt_acceptance) && accepted >= 4) || (is(flaw::long_texts) && length > 100) ||
           (is(flaw::odd_depth) && tree.view().depth[u] == 1) ||
           (is(flaw::near_the_end) && tree.limit() < budget && tree.left(budget) == 1);
  }

  template <class NumberT, class ChanceT>
  void draw(tree<>& tree, const node_rows<NumberT>& rows, ChanceT& chance, node_id u) {
    const tree_view view = tree;
    const node_id from = is(flaw::parents_row) && u != root_node ? view.parent[u] : is(flaw::first_row) ? root_node : u;
    const auto q = rows.row(from);
    const auto best = static_cast<token_id>(std::max_element(q.begin(), q.end()) - q.begin());
    std::vector<NumberT> weights(q.begin(), q.end());
    change(weights, view.token[u], best);
    std::vector<token_id> drawn;
    const auto take = [&](token_id t) {
      if (t >= 0) drawn.push_back(t);
    };
    const std::int32_t n_draws = is(flaw::stops_when_repeated) ? 3 : 2;
    for (std::int32_t i = 0; i < n_draws && tree.left(budget) > static_cast<std::int32_t>(drawn.size()); ++i) {
      const chance_key at{u, is(flaw::same_key) ? 0 : i, is(flaw::other_purpose) ? purpose::accept : purpose::draft};
      token_id t = is(flaw::argmax) ? (i == 0 ? best : -1) : chance.pick(std::span<const NumberT>(weights), at);
      if (t < 0) break;
      if (sampling == regime::without_replacement) weights[static_cast<std::size_t>(t)] = 0;
      const double p = static_cast<double>(q[static_cast<std::size_t>(t)]);
      if (is(flaw::drops_unlikely) && p < 0.2) continue;
      if (takes_likelier(tree, u)) {
        const token_id other = chance.pick(std::span<const NumberT>(weights), {u, i + 8, purpose::draft});
        if (other >= 0 && q[static_cast<std::size_t>(other)] > q[static_cast<std::size_t>(t)]) t = other;
      }
      const bool is_repeated = std::find(drawn.begin(), drawn.end(), t) != drawn.end();
      if (is(flaw::once) && is_repeated) continue;
      take(t);
      if (is(flaw::stops_when_likely) && p > 0.4) break;
      if (is(flaw::stops_when_repeated) && is_repeated) break;
    }
    if (is(flaw::adds_argmax) && tree.left(budget) > static_cast<std::int32_t>(drawn.size())) take(best);
    if (is(flaw::sorted)) {
      std::stable_sort(drawn.begin(), drawn.end(), [&](token_id a, token_id b) {
        return q[static_cast<std::size_t>(a)] > q[static_cast<std::size_t>(b)];
      });
    }
    for (const token_id t : drawn) {
      const std::int32_t before = tree.size();
      const node_id to = is(flaw::swapped_siblings) && u == 1 && view.n_nodes > 2 ? 2 : u;
      const auto row = rows.row(to);
      const node_id child = tree.draw(to, t, static_cast<float>(std::log(row[static_cast<std::size_t>(t)])));
      if (child >= before && tree.view().depth[child] < 2) next.push_back(child);
    }
  }

  template <class NumberT>
  void change(std::vector<NumberT>& weights, token_id last, token_id best) const {
    std::vector<NumberT> sorted = weights;
    std::sort(sorted.rbegin(), sorted.rend());
    NumberT mass = 0, least = 0;
    for (const NumberT x : sorted) {
      if (mass < NumberT(0.9)) least = x;
      mass += x;
    }
    for (std::size_t t = 0; t < weights.size(); ++t) {
      NumberT& x = weights[t];
      if (is(flaw::sharpened)) x *= x;
      if (is(flaw::flattened)) x = std::sqrt(x);
      if (is(flaw::uniform)) x = x > 0 ? NumberT(1) : NumberT(0);
      if (is(flaw::best_eight) && x < sorted[std::min<std::size_t>(7, sorted.size() - 1)]) x = 0;
      if (is(flaw::cut_mass) && x < least) x = 0;
      if (is(flaw::without_best) && static_cast<token_id>(t) == best) x = 0;
      if (is(flaw::not_the_last) && static_cast<token_id>(t) == last) x = 0;
    }
  }
};

using testing::check_lossless;
using iid_policy = flawed_policy<regime::iid>;
using distinct_policy = flawed_policy<regime::without_replacement>;

}  // namespace

TEST_CASE("policies that draw wrongly are found, and where") {
  // The same code without a flaw is lossless.
  const testing::coverage covered = check_lossless(iid_policy(), specinfer());
  CHECK(covered.complete());
  CHECK(check_lossless(distinct_policy(), residual_walk()).complete());
  std::cout << covered;
  int found = 0;
  const auto find = [&](const char* bias, flaw wrong, const char* told) {
    found += find_bias(bias, told, [&] { check_lossless(iid_policy{wrong}, specinfer()); });
  };
  find("a drawn token is kept only if it is likely", flaw::drops_unlikely, "picks token");
  find("draws from the eight most probable tokens", flaw::best_eight, "weights that are not the drafter's row");
  find("the likelier of two draws", flaw::likelier_of_two, "picks token");
  find("the likelier of two draws, after rejections", flaw::learnt_rejection, "picks token");
  find("the likelier of two draws, after acceptances", flaw::learnt_acceptance, "picks token");
  find("the likelier of two draws, near the end of the context", flaw::near_the_end, "picks token");
  find("the likelier of two draws, in long texts", flaw::long_texts, "picks token");
  find("the likelier of two draws, at depth 1", flaw::odd_depth, "picks token");
  find("the most probable token, said to be drawn", flaw::argmax, "without having picked it");
  find("the most probable token beside the draws", flaw::adds_argmax, "without having picked it");
  find("draws from the row's squares", flaw::sharpened, "weights that are not the drafter's row");
  find("draws from the row's roots", flaw::flattened, "weights that are not the drafter's row");
  find("uniform draws", flaw::uniform, "weights that are not the drafter's row");
  find("draws from the parent's row", flaw::parents_row, "weights that are not the drafter's row");
  find("draws from the root's row", flaw::first_row, "weights that are not the drafter's row");
  find("draws recorded by their probability", flaw::sorted, "in the order in which they were made");
  find("repeated draws dropped", flaw::once, "does not draft it");
  find("no further draw after a likely one", flaw::stops_when_likely, "the pair is not lossless");
  find("no further draw after a repeated one", flaw::stops_when_repeated, "the pair is not lossless");
  find("one key for all draws of a node", flaw::same_key, "two things with one key");
  find("a draw with the key of an acceptance", flaw::other_purpose, "for a purpose that is not draft");
  find("the most probable token is never drawn", flaw::without_best, "weights that are not the drafter's row");
  find("the last token is never drawn again", flaw::not_the_last, "weights that are not the drafter's row");
  find("draws from 0.9 of the mass", flaw::cut_mass, "weights that are not the drafter's row");
  find("draws of one node recorded at its sibling", flaw::swapped_siblings, "the policy drafts token");
  const auto find_distinct = [&](const char* bias, flaw wrong, const char* told) {
    found += find_bias(bias, told, [&] { check_lossless(distinct_policy{wrong}, residual_walk()); });
  };
  find_distinct("without replacement: unlikely tokens dropped", flaw::drops_unlikely, "does not draft it");
  find_distinct("without replacement: sorted by probability", flaw::sorted, "in the order in which they were made");
  find_distinct("without replacement: from 0.9 of the mass", flaw::cut_mass, "weights that are not the drafter's row");
  find_distinct("without replacement: the parent's row", flaw::parents_row, "weights that are not the drafter's row");
  std::cout << found << " flawed policies found\n";
  CHECK(found == 29);
}
