// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/cost_aware/acceptance_calibration.hpp"

#include <cmath>

#include "catch.hpp"

using namespace espalier;

TEST_CASE("acceptance is calibrated by what was accepted, and rises with the draft's probability") {
  acceptance_calibration c({0.3, 1.2});
  const double before = c.probability(0.6);
  CHECK(c.probability(0.99) > c.probability(0.6));
  // A draft that says 0.9 and is right in a third of all cases; where it says 0.3, in a tenth. Only the last ones
  // count, and the prior always does.
  double sure = 0, unsure = 0;
  for (int i = 0; i < 1800; ++i) {
    c.observe(0.9, i % 3 == 0);
    c.observe(0.3, i % 10 == 0);
    if (i >= 900) sure += c.probability(0.9) / 900, unsure += c.probability(0.3) / 900;
  }
  CHECK(std::abs(sure - 1.0 / 3) < 0.15);
  CHECK(std::abs(unsure - 0.1) < 0.1);
  for (double p = 0; p < 1; p += 0.01)
    CHECK(c.probability(p) <= c.probability(p + 0.01));
  // Where more of the unlikely is accepted, the line is level, and never falls.
  for (int i = 0; i < 900; ++i) {
    c.observe(0.9, i % 10 == 0);
    c.observe(0.1, i % 10 != 0);
  }
  CHECK(c.probability(0.1) <= c.probability(0.9));
  for (const double p : {0.0, 1.0, 1e-30})
    CHECK((c.probability(p) > 0 && c.probability(p) < 1));
  c.reset();
  CHECK(c.probability(0.6) == before);
}

TEST_CASE("a few failures at the beginning of a text are enough to doubt the draft") {
  acceptance_calibration c({0.3, 1.2});
  for (int i = 0; i < 5; ++i)
    c.observe(0.9, false);
  CHECK(c.probability(0.9) < 0.35);
}

TEST_CASE("a prior that weighs more yields later, but yields") {
  acceptance_calibration light({1.5, 0.3}), heavy({1.5, 0.3}, 6);
  CHECK(heavy.probability(0.9) == light.probability(0.9));
  for (int i = 0; i < 5; ++i) {
    light.observe(0.9, false);
    heavy.observe(0.9, false);
  }
  CHECK(heavy.probability(0.9) > light.probability(0.9) + 0.1);
  for (int i = 0; i < 300; ++i)
    heavy.observe(0.9, false);
  CHECK(heavy.probability(0.9) < 0.15);
}
