// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/cost_aware/draft_pauses.hpp"

#include "catch.hpp"

using namespace espalier;

TEST_CASE("pauses grow until the draft has gained what a text begins with") {
  draft_pauses pauses;
  const auto pause = [&] {
    int rounds = 0;
    while (!pauses.asks())
      ++rounds;
    return rounds;
  };
  CHECK(pause() == 0);
  CHECK(!pauses.paused());
  pauses.observe(false, -3);
  for (const int length : {4, 16, 64, 128, 128}) {
    CHECK(pause() == length);
    CHECK(pauses.paused());
    pauses.observe(false, -1);
  }
  CHECK(pause() == 128);
  // A trial that succeeds is not enough.
  pauses.observe(true, -1);
  CHECK(!pauses.paused());
  CHECK(pause() == 0);
  pauses.observe(true, -1);
  CHECK(pause() == 128);
  pauses.observe(true, -1);
  for (int i = 0; i < 2; ++i) {
    CHECK(pause() == 0);
    pauses.observe(true, 1);
  }
  CHECK(pause() == 0);
  pauses.observe(false, -9);
  CHECK(pause() == 4);
}

TEST_CASE("the draft is asked until its credit and what it has gained are used up") {
  draft_pauses pauses;
  const auto asked = [&] {
    int rounds = 0;
    for (; pauses.asks(); ++rounds)
      pauses.observe(false, -0.25);
    return rounds;
  };
  const int at_once = asked();
  CHECK((at_once > 5 && at_once < 9));  // two plain rounds are lost; the credit fades, too
  pauses.reset();
  for (int i = 0; i < 1000; ++i)
    pauses.observe(true, 1);
  const int later = asked();
  CHECK((later > 20 && later < 50));  // gains fade
}
