// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/iid_paths.hpp"

#include <cstddef>
#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "raises.hpp"
#include "tree_policy/flat_drafter.hpp"
#include "tree_policy/grow_tree.hpp"

using namespace espalier;

TEST_CASE("paths share nodes and keep their slots") {
  testing::row_drafter drafter = flat_drafter(2);
  philox_chance chance(7, 0, 0);
  const tree<> t = grow(iid_paths({.paths = 9, .length = 3}), drafter, chance);
  const tree_view view = t;
  CHECK(view.n_draws == 27);
  CHECK(view.n_nodes <= 15);
  CHECK(drafter.passes == 3);
  std::vector<int> draws(static_cast<std::size_t>(view.n_nodes), 0);
  std::vector<int> visits(draws);
  visits[0] = 9;
  for (node_id u = 0; u < view.n_nodes; ++u) {
    for (const node_id child : view.draws(u))
      ++draws[static_cast<std::size_t>(u)], ++visits[static_cast<std::size_t>(child)];
  }
  for (node_id u = 0; u < view.n_nodes; ++u) {
    if (view.depth[u] < 3) CHECK(draws[static_cast<std::size_t>(u)] == visits[static_cast<std::size_t>(u)]);
  }
}

TEST_CASE("a row of zeros is an error when it is drawn from") {
  testing::row_drafter drafter(3, [](std::span<const token_id>) { return std::vector<double>(3, 0.0); });
  philox_chance chance(0, 0, 0);
  CHECK(says(message_of<numeric_error>([&] { grow(iid_paths(), drafter, chance); }), "after node 0", "no probability"));
}
