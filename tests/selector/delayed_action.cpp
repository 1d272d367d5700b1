// SPDX-License-Identifier: BSL-1.0
#include "espalier/selector/delayed_action.hpp"

#include <cstdint>

#include "catch.hpp"

using namespace espalier;

TEST_CASE("actions are numbered by paths, trunk, length") {
  CHECK(delayed_action::count == 324);
  for (std::int32_t number = 0; number < delayed_action::count; ++number) {
    const delayed_options tree = delayed_action::at(number);
    CHECK(delayed_action::number(tree) == number);
    CHECK((tree.paths >= 1 && tree.paths <= 4 && tree.trunk >= 0 && tree.trunk <= 8 && tree.length >= 0 &&
           tree.length <= 8));
  }
  CHECK(delayed_action::number({.paths = 1, .trunk = 0, .length = 8}) == 8);
  CHECK(delayed_action::number({.paths = 1, .trunk = 8, .length = 0}) == 72);
  CHECK(delayed_action::number({.paths = 2, .trunk = 0, .length = 0}) == 81);
}
