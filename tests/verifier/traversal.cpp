// SPDX-License-Identifier: BSL-1.0
#include "espalier/verifier/traversal.hpp"

#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"

using namespace espalier;

TEST_CASE("the longest path is traversed without recursion") {
  const int n = 200000;
  tree<> path(n);
  path.reset(0);
  for (node_id u = 0; u < n; ++u)
    path.append(u, u % 2, 0);
  // Where draft and target agree, all is accepted; where they do not, the walk comes back a long way.
  struct one_row {
    std::vector<double> distribution;
    static bool has(node_id) { return true; }
    std::span<const double> row(node_id) const { return distribution; }
  };
  for (const double p : {0.5, 0.999999}) {
    const one_row draft{{0.5, 0.5}};
    one_row target{{p, 1 - p}};
    philox_chance chance(2, 0, 0);
    const verdict v = traversal().verify(path, draft, target, chance);
    CHECK((p == 0.5) == (v.accepted == n));
  }
}
