// SPDX-License-Identifier: BSL-1.0
#include "espalier/verifier/multi_path_block.hpp"

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/lossless.hpp"
#include "espalier/tree_policy/iid_paths.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/khisti.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/spectr.hpp"
#include "espalier/verifier/traversal.hpp"
#include "one_node.hpp"

using namespace espalier;

namespace {

// The mean number of tokens that a round writes, over the tiny models.
template <class PolicyT, class VerifierT>
double tokens_a_round(const PolicyT& policy, const VerifierT& verifier) {
  testing::coverage covered;
  double sum = 0;
  for (const testing::tiny_model& model : testing::tiny_models()) {
    for (const auto& [text, probability] : testing::round_distribution(model, policy, verifier, covered))
      sum += probability * static_cast<double>(text.size());
  }
  return sum / static_cast<double>(testing::tiny_models().size());
}

}  // namespace

TEST_CASE("on a single path multi_path_block writes as block_verification does") {
  testing::coverage covered;
  const sampled_chain policy({.length = 3});
  for (const testing::tiny_model& model : testing::tiny_models()) {
    INFO(model.name);
    const auto multi = testing::round_distribution(model, policy, multi_path_block(), covered);
    const auto block = testing::round_distribution(model, policy, block_verification(), covered);
    REQUIRE(testing::largest_difference(multi, block).size() < 1e-12);
  }
  CHECK(covered.n_outcomes > 1000);
}

TEST_CASE("the best of two draws is the one with the greatest p / q, and is accepted by its own distribution") {
  // p / q is 2, 1 and 1/2: of two draws the best is token 0 with 1 - 0.75^2, token 1 with 0.75^2 - 0.5^2, else token 2.
  const std::vector<double> p{0.5, 0.25, 0.25}, q{0.25, 0.25, 0.5};
  tree<> drawn(2);
  drawn.reset(0);
  for (const token_id x : {2, 1})
    drawn.draw(root_node, x, 0);
  const detail::best_draw best(drawn, root_node, row_view<double>(std::span(p)), row_view<double>(std::span(q)));
  CHECK(best.child() == 2);
  CHECK(best.at(0) == Approx(0.4375));
  CHECK(best.at(1) == Approx(0.3125));
  CHECK(best.at(2) == Approx(0.25));
  // Token 0 lacks 0.0625, token 1 is accepted with 0.25 / 0.3125 and token 2 always.
  multi_path_block verifier;
  const auto of = [&](std::vector<token_id> draws) { return one_node::output_distribution(verifier, p, q, draws); };
  CHECK(of({2, 1})[1] == Approx(0.8));
  CHECK(of({2, 1})[0] == Approx(0.2));
  CHECK(of({0, 0})[0] == Approx(1));
  CHECK(of({2, 2})[2] == Approx(1));
}

TEST_CASE("a row of draft and target alike accepts every draw") {
  const std::vector<double> even(4, 0.25);
  multi_path_block verifier;
  for (token_id x = 0; x < 4; ++x)
    CHECK(one_node::output_distribution(verifier, even, even, {x, 3, 0})[static_cast<std::size_t>(x)] == Approx(1));
}

TEST_CASE("with several paths multi_path_block writes more tokens a round than traversal over the tiny models") {
  std::cout << "tokens a round, K paths of 2 tokens: multi_path_block, traversal, khisti, spectr, specinfer\n";
  for (const std::int32_t paths : {1, 2, 3}) {
    const iid_paths policy({.paths = paths, .length = 2});
    const double multi = tokens_a_round(policy, multi_path_block());
    const double bottom_up = tokens_a_round(policy, traversal());
    std::cout << paths << " " << multi << " " << bottom_up << " " << tokens_a_round(policy, khisti()) << " "
              << tokens_a_round(policy, spectr()) << " " << tokens_a_round(policy, specinfer()) << "\n";
    if (paths == 1) CHECK(multi == Approx(bottom_up));
    if (paths > 1) CHECK(multi > bottom_up + 0.005);
  }
}
