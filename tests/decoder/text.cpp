// SPDX-License-Identifier: BSL-1.0
#include "espalier/decoder/text.hpp"

#include <string_view>
#include <vector>

#include "catch.hpp"
#include "espalier/core/tree.hpp"

using namespace espalier;

TEST_CASE("a text takes a verdict up to its first stop condition, and nothing before commit") {
  tree<> t(4);
  t.reset(1);
  t.append(0, 2, 0);
  t.append(1, 3, 0);
  t.append(2, 4, 0);
  t.append(0, 9, 0);
  const auto no_text = [](token_id) { return std::string_view(); };
  const std::vector<token_id> prompt{7, 1};
  text s;
  CHECK_FALSE(s.running());
  s.begin(prompt, {.tokens = {3}}, {}, 100, 10);
  CHECK(s.running());
  CHECK(s.room() == 98);
  const verdict v = s.admit(t, {3, 5}, no_text);
  CHECK(v == verdict{1, 3});
  CHECK(s.tokens().size() == 2);
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
    text s;
    s.begin(prompt, stop, {}, context, 10);
    s.commit(t, s.admit(t, {0, 4}, piece));
    return s.state();
  };
  CHECK(state({}, 3) == status::running);
  CHECK(state({}, 2) == status::context_full);
  CHECK(state({.max_tokens = 1}, 2) == status::length);
  CHECK(state({.max_tokens = 1, .strings = {"x"}}, 2) == status::stop_string);
  CHECK(state({.max_tokens = 1, .tokens = {4}, .strings = {"x"}}, 2) == status::stop_token);
}

TEST_CASE("a text may begin with a part of its own text") {
  const std::vector<token_id> prompt{1, 2, 3, 4, 5, 6};
  text s;
  s.begin(prompt, {}, {}, 50, 10);
  s.begin(s.tokens().subspan(2, 3), {}, {}, 5000, 10);
  CHECK(std::vector<token_id>(s.tokens().begin(), s.tokens().end()) == std::vector<token_id>{3, 4, 5});
  CHECK(s.written().empty());
}
