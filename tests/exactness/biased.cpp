// SPDX-License-Identifier: BSL-1.0
// Ways to be wrong that look right. The same enumeration that proves the library's pairs must catch every one.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <vector>

#include "catch.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/registry.hpp"
#include "espalier/testing/lossless.hpp"
#include "exactness/distinct_draws.hpp"
#include "exactness/redrawn.hpp"

using namespace espalier;
using namespace espalier::testing;

namespace {

template <class PolicyT, class VerifierT>
double worst_bias(const PolicyT& policy, const VerifierT& verifier) {
  coverage report;
  for (const tiny_model& model : tiny_models())
    round_difference(model, policy, verifier, report);
  return report.largest_difference;
}

// The same, printed for the documentation.
template <class PolicyT, class VerifierT>
double shown_bias(const char* what, const PolicyT& policy, const VerifierT& verifier) {
  const double worst = worst_bias(policy, verifier);
  std::cout << "bias " << worst << ": " << what << "\n";
  return worst;
}

void sort_by_probability(std::span<const double> row, std::vector<token_id>& tokens) {
  std::stable_sort(tokens.begin(), tokens.end(), [&](token_id a, token_id b) {
    return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
  });
}

void drop_repeated(std::span<const double>, std::vector<token_id>& tokens) {
  std::vector<token_id> once;
  for (const token_id t : tokens) {
    if (std::find(once.begin(), once.end(), t) == once.end()) once.push_back(t);
  }
  tokens = once;
}

void keep_two_likeliest(std::span<const double> row, std::vector<token_id>& tokens) {
  while (tokens.size() > 2) {
    tokens.erase(std::min_element(tokens.begin(), tokens.end(), [&](token_id a, token_id b) {
      return row[static_cast<std::size_t>(a)] < row[static_cast<std::size_t>(b)];
    }));
  }
}

// Accepts the tokens of a path by the weights w themselves, as the paper on delayed trees prints block verification.
struct block_by_weight {
  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) const {
    node_id kept = root_node;
    double kept_weight = 1, weight = 1;
    for (node_id u = root_node; !tree.is_leaf(u);) {
      const node_id child = *tree.draws(u).begin();
      const auto x = static_cast<std::size_t>(tree.token[child]);
      weight = std::min(1.0, weight * target.row(u)[x] / draft.row(u)[x]);
      u = child;
      if (chance.accept(weight, 1)) kept = u, kept_weight = weight;
    }
    const auto p = target.row(kept);
    token_id token = -1;
    if (!tree.is_leaf(kept) && kept_weight > 0)
      token = chance.pick(residual(p, draft.row(kept)).after(1 / kept_weight));
    return {kept, token >= 0 ? token : chance.pick(p)};
  }
};

// Tests every node on its own and takes the deepest whose whole path passed.
struct deepest_accepted {
  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) const {
    std::vector<char> accepted(static_cast<std::size_t>(tree.n_nodes), 1);
    node_id best = root_node;
    for (node_id u = 1; u < tree.n_nodes; ++u) {
      const node_id parent = tree.parent[u];
      const auto x = static_cast<std::size_t>(tree.token[u]);
      accepted[static_cast<std::size_t>(u)] =
          accepted[static_cast<std::size_t>(parent)] != 0 && chance.accept(target.row(parent)[x], draft.row(parent)[x]);
      if (accepted[static_cast<std::size_t>(u)] != 0 && tree.depth[u] > tree.depth[best]) best = u;
    }
    const auto p = target.row(best);
    if (tree.is_leaf(best)) return {best, chance.pick(p)};
    const token_id token = chance.pick(residual(p, draft.row(best)).after(1));
    return {best, token >= 0 ? token : chance.pick(p)};
  }
};

// SpecInfer without its random order.
struct specinfer_in_list_order {
  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) const {
    return espalier::detail::walk(tree, [&](node_id u) {
      const auto p = target.row(u);
      if (tree.is_leaf(u)) return chance.pick(p);
      const auto q = draft.row(u);
      residual<double> rest(p, q);
      for (const node_id child : tree.draws(u)) {
        const auto x = static_cast<std::size_t>(tree.token[child]);
        if (chance.accept(rest.at(x), q[x])) return tree.token[child];
        rest.take(1);
      }
      return chance.pick(rest);
    });
  }
};

// Traversal whose acceptance after a rejection is min(S / (1 - q(x)), 1), as a public implementation has it.
struct traversal_by_bound {
  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) const {
    verdict result;
    visit(tree, draft, target, chance, root_node, 1, result);
    return result;
  }
  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  static bool visit(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance, node_id u, double a,
                    verdict& result) {
    const auto p = target.row(u);
    const auto q = tree.is_leaf(u) ? p : draft.row(u);
    residual rest(p, q);
    for (const node_id child : tree.draws(u)) {
      const auto x = static_cast<std::size_t>(tree.token[child]);
      if (visit(tree, draft, target, chance, child, std::min(1.0, a * rest.at(x) / q[x]), result)) return true;
      const double left = a > 0 ? a * rest.take(1 / a) : 0;
      a = q[x] < 1 ? std::min(1.0, left / (1 - q[x])) : 0;
    }
    if (u != root_node && !chance.accept(a, 1)) return false;
    result = {u, chance.pick(rest)};
    return true;
  }
};

}  // namespace

// What does not compile as a decoder, tried all the same.
TEST_CASE("pairs that do not compile are biased") {
  static_assert(!compatible(fixed::sampling, specinfer::lossless));
  CHECK(shown_bias("SpecInfer on a tree of best tokens", fixed({.depth = 2, .breadth = 2, .budget = 6}), specinfer()) >
        0.05);
  static_assert(!compatible(chain::sampling, naive::lossless));
  CHECK(shown_bias("naive on a chain of best tokens", chain({.length = 2}), naive()) > 0.05);
  static_assert(!compatible(distinct_draws::sampling, traversal::lossless));
  CHECK(shown_bias("traversal's update for independent draws, without replacement", distinct_draws{{2, 2}},
                   traversal()) > 0.005);
  static_assert(!compatible(dynatree::sampling, residual_walk::lossless));
  CHECK(shown_bias("the residual walk on a tree of best tokens", fixed({.depth = 1, .breadth = 2, .budget = 2}),
                   residual_walk()) > 0.05);
  static_assert(!compatible(distinct_draws::sampling, naive_tree::lossless));
  static_assert(!compatible(iid_paths::sampling, block_verification::lossless));
}

TEST_CASE("acceptance by the weights of block verification is biased") {
  CHECK(worst_bias(sampled_chain({.length = 3}), block_verification()) < 1e-12);
  CHECK(shown_bias("the nodes of a path accepted by the weights w", sampled_chain({.length = 3}), block_by_weight()) >
        0.02);
}

// The smallest case: after one drafted token the weight is the right probability. The target writes token 0 with 1/2 and
// then surely token 0 again; the draft, which is sure of the first token, draws the second at random.
TEST_CASE("acceptance by the weights writes the first of two tokens too often") {
  const std::vector<std::vector<double>> target{{0.5, 0.5}, {1, 0}}, draft{{1, 0}, {0.5, 0.5}};
  const auto row_of = [](const std::vector<std::vector<double>>& rows) {
    return [rows](std::span<const token_id> path) { return rows[path.size() == 1 && path[0] == 0 ? 1 : 0]; };
  };
  const tiny_model smallest{"smallest", 2, row_of(target), row_of(draft)};
  const auto probability_of_0 = [&](const auto& verifier) {
    coverage report;
    double sum = 0;
    for (const auto& [text, probability] : round_distribution(smallest, sampled_chain({.length = 2}), verifier, report))
      sum += text.front() == 0 ? probability : 0;
    return sum;
  };
  CHECK(probability_of_0(block_verification()) == Approx(0.5));
  CHECK(probability_of_0(block_by_weight()) == Approx(0.75));
}

TEST_CASE("independent acceptance on two paths is biased, and not on one") {
  CHECK(worst_bias(sampled_chain({.length = 3}), deepest_accepted()) < 1e-12);
  CHECK(shown_bias("nodes accepted independently on two paths", iid_paths({.paths = 2, .length = 2}),
                   deepest_accepted()) > 0.02);
}

TEST_CASE("a list of draws sorted by probability is biased") {
  const redrawn<iid_paths> same{iid_paths({.paths = 2, .length = 2}), [](auto, auto&) {}};
  const redrawn<iid_paths> sorted{iid_paths({.paths = 2, .length = 2}), sort_by_probability};
  CHECK(worst_bias(same, naive_tree()) < 1e-12);
  CHECK(shown_bias("draws sorted by probability, naive tree", sorted, naive_tree()) > 0.05);
  CHECK(worst_bias(same, specinfer_in_list_order()) < 1e-12);
  CHECK(shown_bias("draws sorted by probability, SpecInfer in list order", sorted, specinfer_in_list_order()) > 0.05);
  // Its own random order makes SpecInfer indifferent to that of the list.
  CHECK(worst_bias(sorted, specinfer()) < 1e-12);
}

TEST_CASE("a list of draws without its repetitions is biased where multiplicity counts") {
  const redrawn<iid_paths> once{iid_paths({.paths = 3, .length = 1}), drop_repeated};
  CHECK(shown_bias("repetitions dropped, SpecInfer", once, specinfer()) > 0.004);
  CHECK(shown_bias("repetitions dropped, traversal", once, traversal()) > 0.004);
  // Without repetitions, independent draws are draws without replacement.
  CHECK(worst_bias(once, residual_walk()) < 1e-12);
  CHECK(worst_bias(once, traversal_without_replacement()) < 1e-12);
}

TEST_CASE("traversal with the bound of a public implementation is biased") {
  CHECK(shown_bias("traversal with min(S / (1 - q(x)), 1)", iid_paths({.paths = 2, .length = 2}),
                   traversal_by_bound()) > 0.02);
}

TEST_CASE("drawn tokens that are dropped for their probability are biased") {
  const redrawn<distinct_draws> pruned{distinct_draws{{2}}, drop_unlikely};
  CHECK(shown_bias("drawn tokens dropped for their probability", pruned, residual_walk()) > 0.1);
}

// What a budget could be used for instead of a threshold that falls: too many draws, cut to the budget afterwards.
TEST_CASE("more draws than the budget, of which the likeliest are kept, are biased") {
  const redrawn<distinct_draws> cut{distinct_draws{{3}}, keep_two_likeliest};
  CHECK(worst_bias(distinct_draws{{2}}, residual_walk()) < 1e-12);
  CHECK(shown_bias("more draws than the budget, the likeliest kept", cut, residual_walk()) > 0.05);
}
