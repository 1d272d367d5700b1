// SPDX-License-Identifier: BSL-1.0
// What cost_aware_draws has in common with cost_aware is in cost_aware.cpp.
#include "espalier/tree_policy/cost_aware_draws.hpp"

#include <cstdint>
#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "tree_policy/written_text.hpp"

using namespace espalier;
using namespace written_text;

TEST_CASE("draws are a path where the first is often right, and go on from the second where the first never is") {
  // The target takes the first draw in most places, or any but token 0, which the draft nearly always draws first.
  for (const bool first : {true, false}) {
    auto t = text<cost_aware_draws>(cost_aware_options{.draft_cost = 0.05, .row_cost = 0.02}.costs());
    int deep = 0, beside = 0;
    for (std::uint32_t round = 0; round < 80; ++round) {
      testing::row_drafter drafter = testing::row_drafter(3, [](std::span<const token_id>) {
        return std::vector<double>{0.9, 0.1, 0};
      });
      tree<> grown(most_asked(t.policy));
      grown.reset(0);
      drafter.reserve(grown.capacity());
      philox_chance chance(3, 0, round);
      t.policy.open({.length = 100});
      espalier::grow(t.policy, grown, drafter, chance);
      const tree_view view = grown;
      verdict v;
      for (node_id child; (child = view.find_child(v.accepted, first ? 0 : 1)) != no_node;)
        v.accepted = child;
      v.token = 2;
      t.policy.observe(view, v);
      if (round < 40) continue;
      deep += view.depth[v.accepted];
      for (node_id u = 1; u < view.n_nodes; ++u)
        beside += *view.draws(view.parent[u]).begin() == u ? 0 : 1;
    }
    INFO(deep << " accepted in 40 rounds, " << beside << " further draws");
    CHECK(deep >= 80);
    CHECK((first ? beside < 80 : beside >= 80));
  }
}
