// SPDX-License-Identifier: BSL-1.0
#include "espalier/decoder/stop.hpp"

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "decoder/counted.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"

using namespace espalier;

namespace {

std::string some_letters(std::mt19937& random, std::size_t n) {
  std::string text;
  for (; n > 0; --n)
    text += static_cast<char>('a' + random() % 2);
  return text;
}

std::vector<std::string> some_strings(std::mt19937& random) {
  std::vector<std::string> strings;
  for (auto i = 1 + random() % 3; i > 0; --i)
    strings.push_back(some_letters(random, 1 + random() % 6));
  return strings;
}

// What a reader is to see of a text, byte by byte: all up to the end of the first stop string that is complete, or, of
// the longest that is complete there, up to its beginning.
std::string text_to_show(const std::string& text, const std::vector<std::string>& strings, bool show_string) {
  for (std::size_t end = 0; end <= text.size(); ++end) {
    const std::string_view so_far = std::string_view(text).substr(0, end);
    std::size_t longest = 0;
    for (const std::string& s : strings)
      longest = so_far.ends_with(s) ? std::max(longest, s.size()) : longest;
    if (longest > 0) return text.substr(0, show_string ? end : end - longest);
  }
  return text;
}

}  // namespace

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

TEST_CASE("what is shown never depends on how the text is cut into pieces, and is never taken back") {
  std::mt19937 random(4);
  int stopped = 0, other_ends = 0, held = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const std::vector<std::string> strings = some_strings(random);
    const bool show_string = trial % 2 == 0;
    stop_string_search search(strings, show_string);
    const std::string whole = some_letters(random, 30);
    const std::string expected = text_to_show(whole, strings, show_string);
    std::string shown;
    bool ended = false;
    for (std::size_t at = 0; !ended && at < whole.size();) {
      if (random() % 3 == 0) {
        search.push(some_letters(random, 9));  // a round that is given up
        search.take_back();
      }
      for (auto pieces = 1 + random() % 3; pieces > 0 && !ended; --pieces) {  // of one round
        const std::size_t n = std::min<std::size_t>(random() % 5, whole.size() - at);
        ended = search.push(whole.substr(at, n));
        at += n;
      }
      stopped += ended ? 1 : 0;
      other_ends += !ended && at == whole.size() ? 1 : 0;
      ended = ended || at == whole.size();
      search.keep(ended);
      shown += search.shown();
      REQUIRE(shown == expected.substr(0, shown.size()));
      held += shown.size() < at ? 1 : 0;
    }
    REQUIRE(shown == expected);
  }
  CHECK(stopped > 1000);
  CHECK(other_ends > 20);
  CHECK(held > 500);
}

TEST_CASE("the pieces of all rounds shown are the text up to its stop string, however it ends") {
  const std::vector<token_id> prompt{3, 1, 4, 1, 5};
  std::mt19937 random(5);
  std::vector<int> seen(6, 0);
  const auto check = [&](auto policy, auto verifier, float temperature) {
    two_models m;
    auto decode = m.decoder(policy, verifier);
    for (int trial = 0; trial < 150; ++trial) {
      stop_conditions stop{.max_tokens = 1 + static_cast<std::int32_t>(random() % 30),
                           .show_string = random() % 2 == 0};
      if (random() % 3 == 0) stop.tokens = {static_cast<token_id>(random() % 11)};
      for (auto n = random() % 3; n > 0; --n) {
        stop.strings.emplace_back();
        for (auto length = 1 + random() % 6; length > 0; --length)
          stop.strings.back() += "abc"[random() % 3];
      }
      decode.begin(prompt, stop, {.sampling = {.temperature = temperature}, .seed = random()});
      std::string shown;
      while (decode.step(models::piece_of))
        shown += decode.last_round().shown;
      std::string text;
      for (const token_id t : decode.current().written())
        text += models::piece_of(t);
      const status state = decode.current().state();
      ++seen[static_cast<std::size_t>(state)];
      REQUIRE(shown == text_to_show(text, stop.strings, stop.show_string));
      if (stop.strings.empty() || (state != status::stop_string && state != status::stop_token)) REQUIRE(shown == text);
    }
  };
  check(chain(), target_only(), 0);
  check(chain(), target_only(), 1);
  check(delayed(), traversal(), 1);
  for (const status state : {status::stop_token, status::stop_string, status::length})
    CHECK(seen[static_cast<std::size_t>(state)] > 20);
}

TEST_CASE("what was held back when a turn was broken off is shown with the next one") {
  two_models m;
  auto decode = m.decoder(chain(), target_only());
  const std::vector<std::string> strings{"abcabcabcabcabc", "bcabcabcabcabca", "cabcabcabcabcab"};
  const auto text_of_turn = [&] {
    std::string text;
    for (const token_id t : decode.current().written())
      text += models::piece_of(t);
    return text;
  };
  int held = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<token_id> prompt{3, 1, 4, 1, 5};
    decode.begin(prompt, {.strings = strings}, {.sampling = {.temperature = 1}, .seed = seed});
    decode.step(models::piece_of);
    std::string shown(decode.last_round().shown);
    const std::string before = text_of_turn();
    held += shown.size() < before.size() ? 1 : 0;
    // In between it may only be read.
    for (std::uint64_t i = 0; i < seed % 3; ++i) {
      decode.resume({}, {.max_tokens = 0, .strings = strings});
      while (decode.step(models::piece_of))
        shown += decode.last_round().shown;
    }
    decode.resume({}, {.max_tokens = 20, .strings = strings});
    while (decode.step(models::piece_of))
      shown += decode.last_round().shown;
    CHECK(shown == before + text_of_turn());
  }
  CHECK(held > 10);
}
