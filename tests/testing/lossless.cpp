// SPDX-License-Identifier: BSL-1.0
// Parts that declare the wrong regime compile: the proof catches them, and says which text is off by how much.
#include "espalier/testing/lossless.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/iid_paths.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/khisti.hpp"
#include "espalier/verifier/naive.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "raises.hpp"

using namespace espalier;
using testing::check_lossless;
using testing::check_pair;
using testing::law_error;

namespace {

// Accepts the first draw of each node, whatever the target says.
struct first_child {
  static constexpr regime lossless = regime::any;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT&, TargetRowsT& target, ChanceT& chance) const {
    node_id u = root_node;
    while (!tree.is_leaf(u))
      u = *tree.draws(u).begin();
    return {u, chance.pick(target.row(u), {u, 0, purpose::residual})};
  }
};

// Drafts the most probable token and says that it was drawn.
struct best_as_iid {
  static constexpr regime sampling = regime::iid;

  std::int32_t max_nodes() const { return 1; }

  std::span<const node_id> begin(tree<>& tree) {
    if (tree.full()) return {};
    return {&root, 1};
  }

  template <class NumberT, class ChanceT>
  std::span<const node_id> take(tree<>& tree, const node_rows<NumberT>& rows, ChanceT&) {
    const auto row = rows.row(root_node);
    const auto best = std::max_element(row.begin(), row.end());
    tree.draw(root_node, static_cast<token_id>(best - row.begin()), static_cast<float>(std::log(*best)));
    return {};
  }

  void observe(tree_view, verdict) const {}

  node_id root = root_node;
};

// Gives a token beyond the vocabulary.
struct beyond : first_child {
  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view, const DraftRowsT&, TargetRowsT& target, ChanceT&) const {
    return {root_node, static_cast<token_id>(target.row(root_node).size())};
  }
};

template <class CallT>
std::string broken(const CallT& call) {
  return message_of<law_error>(call);
}

}  // namespace

TEST_CASE("a verifier that is lossless for less than it says is caught, with the text and both probabilities") {
  const std::string message = broken([] { check_lossless(chain({.length = 1}), first_child()); });
  CHECK(says(message, "the verifier is not lossless for trees that are a single path",
             "over the tiny model \"unlike, vocabulary 2\"", "the target alone writes them with "));
  const std::string pair = broken([] { check_pair(iid_paths({.paths = 2, .length = 1}), first_child()); });
  CHECK(says(pair, "the parts are not lossless over models of 32 tokens", "after 0 accepted tokens", "is written too"));
  CHECK(says(broken([] { check_lossless(chain({.length = 1}), beyond()); }), "adds token 2", "vocabulary 2 tokens"));
}

TEST_CASE("a policy that names a regime which its trees are not of is caught") {
  CHECK(says(broken([] { check_lossless(best_as_iid(), specinfer()); }), "without having picked it"));
}

TEST_CASE("pairs that are lossless pass, at temperature 0 the greedy one, and say what was covered") {
  const auto covered = check_lossless(iid_paths({.paths = 2, .length = 2}), specinfer());
  CHECK(covered.complete());
  CHECK(covered.n_outcomes > 10000);
  CHECK(covered.n_models == static_cast<std::int32_t>(testing::tiny_models().size()));
  CHECK(covered.limit == 4);
  CHECK(covered.budget == 4);
  CHECK(covered.depth == 132);
  CHECK(covered.draws == 6);
  CHECK(covered.n_histories == 3);
  CHECK(covered.vocabulary == 4);
  CHECK(covered.far_vocabulary == 70'000);
  CHECK(covered.drawn_vocabulary == 300);
  CHECK(covered.drawn_depth == 40);
  CHECK(covered.n_keys > 1000);
  CHECK(covered.n_picks > 1000);
  CHECK(covered.largest_difference < 1e-12);
  CHECK(says(in_words(covered), "every outcome: ", "and of further models of up to 70000 tokens",
             "room for 0 to 4 drafted tokens of the budget of 4", "3 histories of verdicts",
             "each with a key of its own"));
  CHECK(check_lossless(chain({.length = 3}), greedy()).complete());
  CHECK(check_lossless(iid_paths({.paths = 2, .length = 1}), khisti()).complete());
  CHECK(check_lossless(sampled_chain({.length = 2}), naive()).complete());
}

TEST_CASE("of trees of too many outcomes those with little room are run, and the coverage says so") {
  const auto covered = check_pair(iid_paths(), specinfer(), {.max_outcomes = 10000});
  CHECK(!covered.complete());
  CHECK(covered.budget == 8);
  CHECK(covered.limit >= 1);
  CHECK(covered.limit < 8);
  CHECK(says(in_words(covered), "of the budget of 8"));
  testing::coverage one;
  const testing::tiny_model model = testing::tiny_models()[8];
  const std::string message =
      message_of<option_error>([&] { testing::round_distribution(model, iid_paths(), specinfer(), one, 1000); });
  CHECK(says(message, "more than 1000 outcomes", "a budget of a few nodes"));
}

TEST_CASE("a max_outcomes that is too few for rounds without drafted tokens is an error") {
  // Of a round without drafted tokens over a model of n tokens there are up to n outcomes.
  for (const std::int64_t most : {-1, 0, 2, 20, 60}) {
    CAPTURE(most);
    CHECK(says(message_of<option_error>([&] { check_pair(iid_paths(), specinfer(), {.max_outcomes = most}); }),
               "max_outcomes is " + std::to_string(most) + ",", "too few", "without drafted tokens"));
  }
  const auto covered = check_pair(iid_paths(), specinfer(), {.max_outcomes = 100});
  CHECK(covered.limit == 0);
  CHECK(covered.n_histories == 3);
}

TEST_CASE("texts of different lengths are compared with the target on all of their beginnings") {
  const auto row = [](std::span<const token_id>) { return std::vector<double>{0.25, 0.75}; };
  const testing::text_distribution right{{{0}, 0.25}, {{1, 0}, 0.1875}, {{1, 1, 0}, 0.140625}, {{1, 1, 1}, 0.421875}};
  CHECK(testing::largest_difference_from(right, row).size() < 1e-15);
  testing::text_distribution wrong = right;
  wrong[{1, 1, 0}] += 0.1;
  wrong[{1, 1, 1}] -= 0.1;
  const auto off = testing::largest_difference_from(wrong, row);
  CHECK(off.text == std::vector<token_id>{1, 1, 0});
  CHECK(off.size() == Approx(0.1));
  wrong.erase(std::vector<token_id>{0});  // outcomes that are missing
  CHECK(testing::largest_difference_from(wrong, row).text.empty());
  CHECK(testing::largest_difference_from({{{2}, 1.0}}, row).size() == 1);
}

TEST_CASE("distributions are compared on all texts of both; what is not a number is as far as can be") {
  const testing::text_distribution a{{{0}, 0.25}, {{1}, 0.75}}, b{{{0}, 0.5}, {{2}, 0.5}};
  const auto off = testing::largest_difference(a, b);
  CHECK(off.text == std::vector<token_id>{1});
  CHECK(off.first == 0.75);
  CHECK(off.second == 0);
  CHECK(testing::largest_difference(a, a).size() == 0);
  CHECK(testing::total_variation(a, a) == 0);
  CHECK(testing::total_variation({{{0}, 0.5}, {{1}, 0.5}}, {{{0}, 0.75}, {{2}, 0.25}}) == Approx(0.5));
  const testing::text_distribution nan{{{0}, std::numeric_limits<double>::quiet_NaN()}, {{1}, 0.75}};
  CHECK(testing::largest_difference(a, nan).size() == 1);
}
