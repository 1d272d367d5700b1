// SPDX-License-Identifier: BSL-1.0
#include "espalier/concepts/regime.hpp"

#include "catch.hpp"

using namespace espalier;

TEST_CASE("regimes are sets") {
  STATIC_REQUIRE(compatible(regime::iid, regime::iid | regime::single_path));
  STATIC_REQUIRE(compatible(regime::iid | regime::single_path, regime::single_path));
  STATIC_REQUIRE_FALSE(compatible(regime::deterministic, regime::iid | regime::without_replacement));
  for (const regime r : {regime::deterministic, regime::iid, regime::without_replacement, regime::single_path})
    CHECK(compatible(r, regime::any));
}
