// SPDX-License-Identifier: BSL-1.0
#include "espalier/decoder/statistics.hpp"

#include <vector>

#include "catch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/decoder/round.hpp"

using namespace espalier;

TEST_CASE("statistics are sums over rounds, and their ratios") {
  tree<> t(3);
  t.reset(1);
  t.append(0, 2, 0);
  t.append(1, 3, 0);
  t.append(1, 4, 0);
  const std::vector<token_id> three{2, 3, 9};
  const std::vector<token_id> one{7};
  statistics stats;
  round_record r;
  r.tree = t;
  r.committed = three;
  r.forwarded_rows = 6;
  r.seconds = {.draft_forward = 1, .grow = 0.25, .compile = 0.25, .target_forward = 2, .verify = 0.25, .commit = 0.25};
  stats(r);
  r.index = 1;
  r.committed = one;
  r.seconds.target_forward = 4;
  stats(r);
  CHECK(stats.rounds == 2);
  CHECK(stats.tokens == 4);
  CHECK(stats.drafted == 6);
  CHECK(stats.accepted == 2);
  CHECK(stats.deepest == 4);
  CHECK(stats.forwarded_rows == 12);
  CHECK(stats.texts == 1);
  CHECK(stats.seconds.total() == 10);
  CHECK(stats.throughput() == 0.4);
  CHECK(stats.time_to_first_token() == 4);
  CHECK(stats.time_per_token() == 6);  // 6 seconds for the one token after the first round
  CHECK(stats.acceptance_rate() == 2.0 / 6);
  CHECK(stats.acceptance_length() == 1);
  CHECK(stats.tokens_per_round() == 2);
  CHECK(stats.drafted_per_round() == 3);
  CHECK(stats.depth() == 2);
  CHECK(stats.overhead() == 0.2);
  statistics slower = stats;
  slower.seconds.target_forward += 10;
  CHECK(stats.speedup(slower) == 2);
  CHECK(statistics().throughput() == 0);
  CHECK(statistics().time_per_token() == 0);
  CHECK(statistics().acceptance_rate() == 0);
}

TEST_CASE("a text that is loaded after its first round counts where it began, and once in all") {
  tree<> t(1);
  t.reset(1);
  const std::vector<token_id> one{7};
  round_record r;
  r.tree = t;
  r.committed = one;
  r.seconds = {.target_forward = 2};
  statistics here, there;
  here(r);
  r.index = 1;
  here(r);
  r.index = 2;  // saved here, loaded there
  there(r);
  CHECK(here.texts == 1);
  CHECK(there.texts == 0);
  CHECK(there.rounds == 1);
  CHECK(there.time_to_first_token() == 0);
  CHECK(there.time_per_token() == 2);
  here += there;
  CHECK(here.texts == 1);
  CHECK(here.time_to_first_token() == 2);
  CHECK(here.time_per_token() == 2);
}

TEST_CASE("steps that read a prompt count with the first round of its text, and as no round") {
  tree<> t(1);
  t.reset(1);
  const std::vector<token_id> one{7};
  round_record reading, first, second;
  reading.forwarded_rows = 64;
  reading.seconds.target_forward = 3;
  first.tree = second.tree = t;
  first.committed = second.committed = one;
  first.forwarded_rows = second.forwarded_rows = 2;
  first.seconds.target_forward = 1;
  second.seconds.target_forward = 0.5;
  second.index = 1;
  statistics stepped, generated;
  for (int text = 0; text < 2; ++text) {
    stepped(reading);
    stepped(reading);
    stepped(first);
    stepped(second);
  }
  first.seconds.target_forward = 7;
  for (int text = 0; text < 2; ++text) {
    generated(first);
    generated(second);
  }
  for (const statistics& s : {stepped, generated}) {
    CHECK(s.rounds == 4);
    CHECK(s.tokens == 4);
    CHECK(s.texts == 2);
    CHECK(s.forwarded_rows == 8);
    CHECK(s.seconds.total() == 15);
    CHECK(s.time_to_first_token() == 7);
    CHECK(s.time_per_token() == 0.5);
  }
  // Rows that are read again in the middle of a text are not the prompt's.
  reading.index = 1;
  stepped(reading);
  CHECK(stepped.seconds.total() == 18);
  CHECK(stepped.reading_seconds == 0);
  CHECK(stepped.rounds == 4);
}
