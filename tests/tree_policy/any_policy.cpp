// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/any_policy.hpp"

#include <boost/hana/for_each.hpp>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/registry.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "raises.hpp"
#include "tree_policy/path_rows.hpp"

using namespace espalier;

namespace {

using rows_type = decltype(ask(std::declval<testing::row_drafter&>(), std::declval<tree<>&>(), {}, 0));
template <regime Sampling>
using policy_of_rows = any_policy<Sampling, takes<rows_type, philox_chance>>;

static_assert(TreePolicy<policy_of_rows<regime::iid>, testing::row_drafter, philox_chance>);
static_assert(RebuildingPolicy<policy_of_rows<regime::deterministic>>);
static_assert(!TreePolicy<policy_of_rows<regime::deterministic>, prompt_lookup, philox_chance>,
              "runs of tokens are not among the answers that it takes");

// Parent and token of each node, as text.
std::string text_of(tree_view view) {
  std::string text;
  for (node_id u = 1; u < view.n_nodes; ++u)
    text += std::to_string(view.parent[u]) + ":" + std::to_string(view.token[u]) + " ";
  return text;
}

// Grows the tree of one round, has the policy observe a verdict that follows from the round, and returns text_of(tree).
template <class PolicyT>
std::string grow_round(PolicyT& policy, testing::row_drafter& drafter, std::uint32_t round) {
  if constexpr (OpeningPolicy<PolicyT>) policy.open({static_cast<std::int32_t>(round + 1), {.temperature = 1}, true});
  tree<> t(most_asked(policy));
  t.reset(static_cast<token_id>(round % 3), 12);
  philox_chance chance(7, 0, round);
  grow(policy, t, drafter, chance);
  const auto last = static_cast<node_id>(round % static_cast<std::uint32_t>(t.size()));
  policy.observe(t.view(), {last, 1});
  return text_of(t.view());
}

}  // namespace

TEST_CASE("a policy without its type grows the trees of the policy that it holds, and so does its copy") {
  testing::row_drafter drafter(6, path_rows(5, 6));
  int grown = 0;
  boost::hana::for_each(tree_policies, [&]<class PartT>(const PartT& part) {
    using policy_type = typename PartT::type;
    INFO(part.name);
    policy_type policy = part.make();
    policy_of_rows<policy_type::sampling> untyped(policy);
    CHECK(untyped.max_nodes() == policy.max_nodes());
    drafter.reserve(most_asked(policy));
    for (std::uint32_t round = 0; round < 20; ++round) {
      const std::string expected = grow_round(policy, drafter, round);
      auto copy = untyped;
      REQUIRE(grow_round(copy, drafter, round) == expected);
      REQUIRE(grow_round(untyped, drafter, round) == expected);
      if constexpr (requires { policy.limited_by(); }) CHECK(untyped.limited_by() == policy.limited_by());
      grown += expected.empty() ? 0 : 1;
      if (round != 11) continue;
      if constexpr (ResettingPolicy<policy_type>) policy.reset();
      untyped.reset();
    }
  });
  CHECK(grown > 200);
}

TEST_CASE("an answer that the held policy does not take is refused") {
  struct other_answer {};
  any_policy<regime::deterministic, takes<rows_type, philox_chance>, takes<other_answer, philox_chance>> policy{
      best_first()};
  tree<> t(4);
  t.reset(1, 4);
  philox_chance chance(1, 0, 0);
  CHECK(says(message_of<option_error>([&] { policy.take(t, other_answer{}, chance); }), "this kind of drafter"));
}
