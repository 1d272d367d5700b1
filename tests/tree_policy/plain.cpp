// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/plain.hpp"

#include "catch.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "tree_policy/flat_drafter.hpp"
#include "tree_policy/grow_tree.hpp"

using namespace espalier;

TEST_CASE("plain drafts nothing") {
  testing::row_drafter drafter = flat_drafter(6);
  plain policy;
  CHECK(grow(policy, drafter).size() == 1);
  CHECK(drafter.passes == 0);
}
