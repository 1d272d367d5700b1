// SPDX-License-Identifier: BSL-1.0
#include "espalier/verifier/target_only.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/registry/part.hpp"
#include "espalier/testing/enumerating_chance.hpp"
#include "espalier/testing/random_tree.hpp"
#include "raises.hpp"
#include "verifier/counted_rows.hpp"
#include "verifier/scene.hpp"

using namespace espalier;

TEST_CASE("target_only's verdicts have the probabilities of the target's own walks") {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const tree<> t = testing::random_tree(9, seed, 3, 0.4);
    const tree_view view = t;
    counted_rows target = random_rows(9, 3, seed);
    std::map<std::pair<node_id, token_id>, double> distribution;
    enumerating_chance chance;
    do {
      const verdict v = target_only().verify(view, 0, target, chance);
      distribution[{v.accepted, v.token}] += chance.probability();
    } while (chance.next());
    double total = 0;
    for (node_id u = 0; u < view.n_nodes; ++u) {
      double reach = 1;
      for (const node_id a : testing::path_to(view, u)) {
        if (a != root_node)
          reach *=
              target.distributions[static_cast<std::size_t>(view.parent[a])][static_cast<std::size_t>(view.token[a])];
      }
      for (token_id x = 0; x < 3; ++x) {
        if (view.find_child(u, x) != no_node) {
          REQUIRE(distribution.count({u, x}) == 0);  // it would have walked on
          continue;
        }
        const double expected = reach * target.distributions[static_cast<std::size_t>(u)][static_cast<std::size_t>(x)];
        const auto found = distribution.find({u, x});
        REQUIRE(std::abs((found == distribution.end() ? 0.0 : found->second) - expected) < 1e-12);
        total += expected;
      }
    }
    REQUIRE(std::abs(total - 1) < 1e-12);
  }
}

TEST_CASE("target_only checks the rows it draws from") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const part<target_only> target_alone{"target-only", ""};
  for (const std::vector<double>& row :
       {std::vector<double>{nan, 0.5, 0.5, 0}, {-0.5, 1, 0.5, 0}, {0.2, 0.2, 0.1, 0}, {0, 0, 0, 0}}) {
    scene s;
    s.p.rows[0] = row;
    CHECK(says(message_of<numeric_error>([&] { verify(target_alone, s); }), "target", "after node 0"));
  }
}
