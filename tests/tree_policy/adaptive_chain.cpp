// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/adaptive_chain.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "drafter/fixed_drafters.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "raises.hpp"
#include "tree_policy/flat_drafter.hpp"
#include "tree_policy/grow_tree.hpp"

using namespace espalier;

TEST_CASE("an adaptive chain grows by two when all is accepted and shrinks by one when not") {
  testing::row_drafter drafter = flat_drafter(4);
  adaptive_chain policy({.length = 3, .max_length = 8, .confidence = 0});
  philox_chance chance(0, 0, 0);
  const auto round = [&](node_id accepted) {
    const tree<> t = grow(policy, drafter, chance);
    const int drafted = t.size() - 1;
    REQUIRE(drafter.passes == drafted);
    policy.observe(t, {accepted < 0 ? t.size() - 1 : accepted, 0});
    return drafted;
  };
  CHECK(round(-1) == 3);
  CHECK(round(-1) == 5);
  CHECK(round(6) == 7);
  CHECK(round(-1) == 6);
  CHECK(round(-1) == 8);  // the most
  for (const int length : {8, 7, 6, 5, 4, 3, 2, 1, 1})
    CHECK(round(0) == length);
  CHECK(round(-1) == 1);
  CHECK(policy.length() == 3);
  tree<> none(0);
  espalier::grow(policy, none, drafter, chance);
  policy.observe(none, {root_node, 0});  // nothing was drafted
  CHECK(policy.length() == 3);
  CHECK(round(-1) == 3);
  policy.reset();
  CHECK(round(0) == 3);
}

TEST_CASE("an adaptive chain ends with the first token that the draft is unsure of") {
  // The best token is 1, with probability 0.9, 0.7, 0.5, 0.3, .. down the path.
  testing::row_drafter drafter(3, [](std::span<const token_id> path) {
    const double best = std::max(0.34, 1.1 - 0.2 * static_cast<double>(path.size()));
    return std::vector<double>{(1 - best) / 2, best, (1 - best) / 2};
  });
  philox_chance chance(0, 0, 0);
  const auto drafted = [&](double confidence) {
    adaptive_chain policy({.confidence = confidence});
    const tree<> t = grow(policy, drafter, chance);
    REQUIRE(t.view().token[t.size() - 1] == 1);
    return t.size() - 1;
  };
  CHECK(drafted(0) == 20);
  CHECK(drafted(0.4) == 4);
  CHECK(drafted(0.6) == 3);
  CHECK(drafted(0.8) == 2);
  CHECK(drafted(1) == 1);
  testing::row_drafter even = flat_drafter(4);
  adaptive_chain as_sure({.confidence = 0.25});
  CHECK(grow(as_sure, even, chance).size() == 21);  // as probable as it must be
  // All of a short draft accepted counts as all accepted.
  adaptive_chain policy;
  const tree<> t = grow(policy, drafter, chance);
  policy.observe(t, {4, 0});
  CHECK(policy.length() == 22);
  CHECK(grow(policy, drafter, chance, 2).size() == 3);
}

TEST_CASE("over runs an adaptive chain takes as much of each as its length says") {
  fixed_run drafter{.run = {7, 8, 9, 7, 8, 9}};
  adaptive_chain policy({.length = 3, .max_length = 8, .confidence = 1});
  const auto round = [&](node_id accepted, std::int32_t limit = 64) {
    const tree<> t = grown(policy, drafter, limit);
    for (node_id u = 1; u < t.size(); ++u) {
      REQUIRE(t.view().parent[u] == u - 1);
      REQUIRE(t.view().token[u] == drafter.run[static_cast<std::size_t>(u) - 1]);
      REQUIRE(t.view().log_prob[u] == 0.0F);
    }
    policy.observe(t, {accepted < 0 ? t.size() - 1 : accepted, 0});
    return t.size() - 1;
  };
  CHECK(round(-1) == 3);
  CHECK(round(-1, 2) == 2);  // all that there was room for
  CHECK(round(-1) == 6);     // of 7
  CHECK(policy.length() == 8);
  CHECK(round(2) == 6);
  CHECK(policy.length() == 7);
  drafter.run.clear();
  CHECK(round(0) == 0);
  CHECK(policy.length() == 7);  // nothing was drafted
}

TEST_CASE("options of an adaptive chain out of range are errors that name them") {
  const auto message = [](adaptive_chain_options options) {
    return message_of<option_error>([=] { adaptive_chain p(options); });
  };
  CHECK(says(message({.length = 0}), "length is 0"));
  CHECK(says(message({.length = 65}), "length is 65", "between 1 and 64"));
  CHECK(says(message({.max_length = 1025}), "max_length is 1025"));
  CHECK(says(message({.confidence = 1.5}), "confidence is 1.5"));
  CHECK(says(message({.confidence = std::nan("")}), "confidence is", "nan"));
}
