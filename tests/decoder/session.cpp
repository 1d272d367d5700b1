// SPDX-License-Identifier: BSL-1.0
#include "espalier/decoder/session.hpp"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/decoder/observer.hpp"
#include "espalier/decoder/statistics.hpp"
#include "raises.hpp"

using namespace espalier;

TEST_CASE("stop strings are found wherever they end, however the text is cut into pieces") {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<std::string> strings;
    for (auto i = 1 + random() % 3; i > 0; --i) {
      strings.emplace_back();
      for (auto n = 1 + random() % 6; n > 0; --n)
        strings.back() += static_cast<char>('a' + random() % 2);
    }
    stop_string_search search(strings);
    std::string text;
    for (bool ended = false; !ended && text.size() < 400;) {
      std::string piece;
      for (auto n = random() % 4; n > 0; --n)
        piece += static_cast<char>('a' + random() % 2);
      text += piece;
      for (const std::string& s : strings)
        ended = ended || text.find(s) != std::string::npos;
      if (random() % 3 == 0) {
        search.push("ababbaabab");  // a round that is given up
        search.take_back();
      }
      REQUIRE(search.push(piece) == ended);
      search.keep();
    }
  }
}

TEST_CASE("empty stop strings and none never stop") {
  stop_string_search none;
  CHECK_FALSE(none.push("abc"));
  none.keep();
  stop_string_search empty({"", ""});
  CHECK_FALSE(empty.push("abc"));
  empty.keep();
  CHECK_FALSE(empty.push(""));
}

TEST_CASE("stop strings are bytes: a character cut in two is found") {
  stop_string_search search({"\xC3\xA9"});
  CHECK_FALSE(search.push("caf\xC3"));
  search.keep();
  CHECK(search.push("\xA9!"));
}

TEST_CASE("a session takes a verdict up to its first stop condition, and nothing before commit") {
  tree<> t(4);
  t.reset(1);
  t.append(0, 2, 0);
  t.append(1, 3, 0);
  t.append(2, 4, 0);
  t.append(0, 9, 0);
  const auto no_text = [](token_id) { return std::string_view(); };
  const std::vector<token_id> prompt{7, 1};
  session s;
  CHECK_FALSE(s.running());
  s.begin(prompt, {.tokens = {3}}, 100, 10);
  CHECK(s.running());
  CHECK(s.room() == 98);
  const verdict v = s.admit(t, {3, 5}, no_text);
  CHECK(v == verdict{1, 3});
  CHECK(s.text().size() == 2);
  CHECK(s.running());
  CHECK(s.round() == 0);
  const verdict other = s.admit(t, {4, 5}, no_text);  // the round is done again and ends otherwise
  CHECK(other == verdict{4, 5});
  s.commit(t, other);
  CHECK(std::vector<token_id>(s.written().begin(), s.written().end()) == std::vector<token_id>{9, 5});
  CHECK(s.running());
  CHECK(s.round() == 1);
  s.commit(t, s.admit(t, {3, 5}, no_text));
  CHECK(s.state() == status::stop_token);
  CHECK(std::vector<token_id>(s.written().begin(), s.written().end()) == std::vector<token_id>{9, 5, 2, 3});
}

TEST_CASE("the first condition that holds names the end") {
  tree<> t(1);
  t.reset(1);
  const auto piece = [](token_id) { return std::string_view("x"); };
  const std::vector<token_id> prompt{1};
  const auto state = [&](const stop_conditions& stop, std::int32_t context) {
    session s;
    s.begin(prompt, stop, context, 10);
    s.commit(t, s.admit(t, {0, 4}, piece));
    return s.state();
  };
  CHECK(state({}, 3) == status::running);
  CHECK(state({}, 2) == status::context_full);
  CHECK(state({.max_tokens = 1}, 2) == status::length);
  CHECK(state({.max_tokens = 1, .strings = {"x"}}, 2) == status::stop_string);
  CHECK(state({.max_tokens = 1, .tokens = {4}, .strings = {"x"}}, 2) == status::stop_token);
}

TEST_CASE("a session may begin with a part of its own text") {
  const std::vector<token_id> prompt{1, 2, 3, 4, 5, 6};
  session s;
  s.begin(prompt, {}, 50, 10);
  s.begin(s.text().subspan(2, 3), {}, 5000, 10);
  CHECK(std::vector<token_id>(s.text().begin(), s.text().end()) == std::vector<token_id>{3, 4, 5});
  CHECK(s.written().empty());
}

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
  CHECK(stats.sessions == 1);
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
