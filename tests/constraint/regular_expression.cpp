// SPDX-License-Identifier: BSL-1.0
#include "espalier/constraint/regular_expression.hpp"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <random>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

// Each byte of ASCII, then longer pieces, then the end.
std::vector<std::string> pieces() {
  std::vector<std::string> all;
  for (int c = 0; c < 256; ++c)
    all.push_back(std::string(1, static_cast<char>(c)));
  for (const char* more : {"ab", "abc", "ba", "aa", "", "12", "-", "ab", "\xc3\xa4", "\xe2\x82"})
    all.push_back(more);
  all.push_back("</s>");
  return all;
}

const token_id end_of_text = static_cast<token_id>(pieces().size()) - 1;

vocabulary_trie vocabulary() {
  return vocabulary_trie(pieces(), {end_of_text});
}

bool accepts(const token_automaton& c, const std::string& text) {
  auto state = c.start();
  for (const char byte : text)
    state = c.advance(state, static_cast<unsigned char>(byte));
  return c.accepts(state);
}

bool accepts(const std::string& pattern, const std::string& text) {
  return accepts(regular_expression(pattern, vocabulary()), text);
}

// All texts of up to n of these characters.
template <class FunctionT>
void for_each_text(const std::string& characters, std::size_t n, const FunctionT& f, const std::string& text = {}) {
  f(text);
  if (text.size() == n) return;
  for (const char c : characters)
    for_each_text(characters, n, f, text + c);
}

std::string utf8(std::uint32_t c) {
  const auto byte = [](std::uint32_t x) { return static_cast<char>(static_cast<unsigned char>(x)); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | c >> 6), byte(0x80 | (c & 0x3F))};
  if (c < 0x10000) return {byte(0xE0 | c >> 12), byte(0x80 | (c >> 6 & 0x3F)), byte(0x80 | (c & 0x3F))};
  return {byte(0xF0 | c >> 18), byte(0x80 | (c >> 12 & 0x3F)), byte(0x80 | (c >> 6 & 0x3F)), byte(0x80 | (c & 0x3F))};
}

}  // namespace

TEST_CASE("regular expressions accept what std::regex does") {
  int compared = 0;
  for (const char* pattern : {"a",
                              "",
                              "ab|ba",
                              "(a|b)*",
                              "(ab)+c?",
                              "a{2}",
                              "a{2,}b",
                              "a{1,3}",
                              "(?:a|bc){0,2}",
                              "[ab]*c",
                              "[^a]+",
                              "a.c",
                              "(a*b*)*c",
                              "((a|b)(b|c)){1,2}",
                              "a?b?c?",
                              "a{0}b",
                              "(ab?){2,3}",
                              "[a-b]{3}",
                              "(a|)b",
                              "\\w\\W?",
                              "a\\.b|b",
                              "(a{0,2}b){2}",
                              "(a+|b){2,}",
                              "^ab$",
                              "((a?){2}b){1,2}",
                              "[]a]b",
                              "[a\\]-]+",
                              "a*?b+?c??",
                              "(a?){0,40}b",
                              "(a|ab|)*c",
                              "((a|aa){1,2}b?){2,3}",
                              "a{0,2}?b",
                              "(a|b|c|ab|bc){0,3}c"}) {
    INFO(pattern);
    // What ECMAScript has of it otherwise.
    const std::string other = std::string(pattern) == "[]a]b" ? "[\\]a]b" : pattern;
    const std::regex expected(other);
    const token_automaton c = regular_expression(pattern, vocabulary());
    for_each_text("abc.]", 5, [&](const std::string& text) {
      ++compared;
      if (accepts(c, text) != std::regex_match(text, expected)) FAIL(text);
    });
  }
  std::cout << "regular expressions: " << compared << " texts as std::regex has them\n";
}

TEST_CASE("characters are those of Unicode") {
  struct {
    const char* pattern;
    std::uint32_t low, high;
  } const ranges[] = {{"[\xc3\xa4-\xe2\x82\xac]", 0xE4, 0x20AC},
                      {"[\\u0041-\\uFFFF]", 0x41, 0xFFFF},
                      {"[\xf0\x90\x80\x80-\xf0\x9f\x98\x80]", 0x10000, 0x1F600},
                      {"[\\x7f-\\u0801]", 0x7F, 0x801}};
  for (const auto& r : ranges) {
    const token_automaton in = regular_expression(r.pattern, vocabulary());
    std::string out = r.pattern;
    out.insert(1, "^");
    const token_automaton not_in = regular_expression(out, vocabulary());
    for (std::uint32_t c = 1; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 251) {
      if (0xD800 <= c && c <= 0xDFFF) continue;
      const bool expected = r.low <= c && c <= r.high;
      if (accepts(in, utf8(c)) != expected || accepts(not_in, utf8(c)) == expected) FAIL(r.pattern << ": " << c);
    }
    CHECK(!accepts(in, "\xff"));
    CHECK(!accepts(not_in, "\xed\xa0\x80"));  // a surrogate
  }
  CHECK(accepts(".", "\xe2\x82\xac"));
  CHECK(!accepts(".", "\n"));
  CHECK(!accepts(".", "\xe2\x82"));
  CHECK(accepts("\xe2\x82\xac+", "\xe2\x82\xac\xe2\x82\xac"));
}

TEST_CASE("masks are of the tokens whose bytes lead on") {
  const auto all = pieces();
  for (const char* pattern : {"(ab|ba)*c", "a{1,4}", "[^b]*b", "\\d{2}-\\d", "\xc3\xa4?\xe2\x82\xac", "(aa|ab|abc)+"}) {
    INFO(pattern);
    const token_automaton c = regular_expression(pattern, vocabulary());
    for (const char* before : {"", "a", "ab", "aba", "12", "1", "\xc3\xa4", "\xe2"}) {
      auto state = c.start();
      for (const char* p = before; *p != 0; ++p)
        state = c.advance(state, static_cast<unsigned char>(*p));
      for (int again = 0; again < 2; ++again) {
        const auto mask = c.allowed(state);
        REQUIRE(mask.size() == (all.size() + 31) / 32);
        for (std::size_t t = 0; t < all.size(); ++t) {
          const bool is_allowed = (mask[t / 32] >> t % 32 & 1U) != 0;
          const auto token = static_cast<token_id>(t);
          if (token == end_of_text)
            CHECK(is_allowed == c.accepts(state));
          else
            CHECK(is_allowed == (!all[t].empty() && c.advance(state, token) >= 0));
        }
      }
    }
    CHECK(c.advance(c.start(), end_of_text) < 0);
    const auto none = c.allowed(c.advance(c.start(), end_of_text));
    CHECK(std::count(none.begin(), none.end(), 0U) == std::ssize(none));
  }
}

TEST_CASE("masks of states that differ in a count are those of each state's own tokens") {
  // Longer tokens than most counts leave room for, and a tree of them.
  std::vector<std::string> all = pieces();
  for (int n = 3; n < 300; n += n < 24 ? 1 : 60) {
    all.push_back(std::string(static_cast<std::size_t>(n), 'a'));
    all.push_back(all.back() + "b");
    all.push_back("\xe2\x82\xac" + all.back());
  }
  std::minstd_rand random(5);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random()) % n; };
  for (int i = 0; i < 200; ++i) {
    all.emplace_back(1, "bc"[below(2)]);
    for (std::size_t n = 1 + below(14); n > 0; --n)
      all.back() += "abc"[below(3)];
  }
  const vocabulary_trie words(all, {end_of_text});
  int compared = 0;
  for (const char* pattern :
       {"a{0,40}", "[^\"]{0,30}\"", "\"(a|\\\\u[0-9]{4}|.){3,25}\"", "(a{2,9}b){0,12}", "(a{0,9}b?){0,9}c",
        "(a|aa){0,20}b", "[ab]{0,15}(a{0,20}|ab)", "((a|b){0,3}|.{2,7}){1,5}", "a{7}(b|a{3,11}){0,4}", "(a?b?){0,30}",
        "(a{0,4}){0,9}[^c]{0,2}", "(a*b){0,20}", "a{300,900}b"}) {
    INFO(pattern);
    const token_automaton c = regular_expression(pattern, words);
    std::vector<std::int32_t> states{c.start()};
    for (int i = 0; i < 40 && c.advance(states.back(), 'a') >= 0; ++i)
      states.push_back(c.advance(states.back(), 'a'));
    for (int i = 0; i < 60; ++i) {
      // On from any state that was reached before, so that counts go up and down.
      const std::int32_t state = states[below(states.size())];
      const auto mask = c.allowed(state);
      std::vector<token_id> able;
      for (std::size_t t = 0; t < all.size(); ++t) {
        const auto token = static_cast<token_id>(t);
        const bool leads_on = token == end_of_text ? c.accepts(state) : !all[t].empty() && c.advance(state, token) >= 0;
        if ((mask[t / 32] >> t % 32 & 1U) != static_cast<unsigned>(leads_on)) FAIL("token " << t << " of state " << i);
        if (leads_on && token != end_of_text) able.push_back(token);
        ++compared;
      }
      for (int n = 0; n < 2 && !able.empty(); ++n)
        states.push_back(c.advance(state, able[below(able.size())]));
    }
  }
  std::cout << "masks of counted repetitions: " << compared << " tokens as they lead on\n";
}

TEST_CASE("more masks than are kept are made again") {
  const token_automaton c = regular_expression("a{9000}", vocabulary());
  auto state = c.start();
  for (int i = 0; i < 9000; ++i) {
    REQUIRE((c.allowed(state)['a' / 32] >> 'a' % 32 & 1U) != 0);
    state = c.advance(state, 'a');
  }
  CHECK(c.accepts(state));
  CHECK((c.allowed(c.start())['a' / 32] >> 'a' % 32 & 1U) != 0);
}

TEST_CASE("repetitions of repetitions are one, where no number of times is left out") {
  // Pairs of patterns that describe the same texts.
  for (const auto& [nested, flat] : std::vector<std::pair<std::string, std::string>>{
           {"(a?){0,4}", "a{0,4}"},
           {"(a?){3}", "a{0,3}"},
           {"((a{0,2}){0,2})b", "a{0,4}b"},
           {"(a{2,3}){2}", "a{4,6}"},
           {"(a{3}){0,2}", "(aaa)?(aaa)?"},
           {"(a{2}){1,2}", "aa(aa)?"},
           {"(a{2,}){0,3}", "(aa+)?"},
           {"(a+)*", "a*"},
           {"(a*)+", "a*"},
           {"(a*){2}", "a*"},
           {"(a{2,}){2,3}", "a{4,}"},
           {"(a?|b){0,3}", "[ab]{0,3}"},
           {"(a|b|){0,3}", "[ab]{0,3}"},
           {"(|a)*", "a*"},
           {"(a|b?)", "[ab]?"},
           {"(){5}a", "a"},
           {"(a{0}){3}b", "b"},
           {"((a?b?)?){0,2}", "(a?b?)(a?b?)"},
           {"(ab|a{0,2}){2}", "(ab|a?a?)(ab|a?a?)"},
       }) {
    INFO(nested << " and " << flat);
    const token_automaton one = regular_expression(nested, vocabulary()),
                          other = regular_expression(flat, vocabulary());
    for_each_text("ab", 7, [&](const std::string& text) {
      INFO(text);
      REQUIRE(accepts(one, text) == accepts(other, text));
    });
  }
}

TEST_CASE("patterns whose parts may be left out cost no more than what they are, or are refused") {
  // Steps of the first mask: of nested repetitions no more than of one.
  const auto steps = [](const std::string& pattern) {
    token_automaton c = regular_expression(pattern, vocabulary());
    (void)c.allowed(c.start());
    return c.steps();
  };
  CHECK(steps("(.?){0,1200}") == steps(".{0,1200}"));
  CHECK(steps("(\\w{0,60}){0,60}") == steps("\\w{0,3600}"));
  CHECK(steps("([a-z]?){4000}(a[a-z]{20}|b[a-z]{20})*") < 20'000);
  // What cannot be written as one repetition takes the steps that it may, and then says so.
  token_automaton c = regular_expression("((.?a?)?b?){0,60}", vocabulary());
  c.set_limits({.steps = 50});
  CHECK(says(message_of<steps_error>([&] { c.allowed(c.start()); }), "more than 50 steps",
             "Lower the pattern's numbers of repetitions"));
  // What it has found stays: with more steps it ends where it would have ended, with the same mask.
  for (int n = 0; n < 1000; ++n) {
    try {
      (void)c.allowed(c.start());
      break;
    } catch (const steps_error&) {
      c.set_limits({.steps = 100 * (n + 1)});
    }
  }
  const auto found = c.allowed(c.start());
  token_automaton at_once = regular_expression("((.?a?)?b?){0,60}", vocabulary());
  at_once.set_limits({.steps = std::int64_t{1} << 40});
  const auto expected = at_once.allowed(at_once.start());
  CHECK(std::equal(found.begin(), found.end(), expected.begin(), expected.end()));
  CHECK(c.bytes() == at_once.bytes());
}

TEST_CASE("an error in a regular expression says where, and what was expected") {
  const auto message = [](const char* pattern) {
    return message_of<input_error>([&] { regular_expression(pattern, vocabulary()); });
  };
  CHECK(message("a(b") == "the regular expression \"a(b\" has its end at position 3; expected ')'.");
  CHECK(message("*a") ==
        "the regular expression \"*a\" has '*' at position 0; expected something to repeat before it.");
  CHECK(says(message("a)b"), "')' at position 1", "a '(' before it"));
  CHECK(says(message("[a"), "its end at position 2", "']'"));
  CHECK(says(message("a{2"), "its end at position 3", "'}'"));
  CHECK(says(message("a{x}"), "'x' at position 2", "a number"));
  CHECK(says(message("a{3,2}"), "position 5", "not below the first"));
  CHECK(says(message("a{10001}"), "at most 10000 repetitions"));
  CHECK(says(message("a*+"), "'+' at position 2", "possessive"));
  CHECK(says(message("a$b"), "'b' at position 2", "nothing after '$'"));
  CHECK(says(message("a^b"), "'^' at position 1", "at the beginning alone"));
  CHECK(says(message("(?=a)"), "'=' at position 2", "look-ahead"));
  CHECK(says(message("(?<!a)"), "'<' at position 2", "look-behind"));
  CHECK(says(message("(?i)a"), "'i' at position 2", "flags"));
  CHECK(says(message("\\bab"), "position 0", "\\b"));
  CHECK(says(message("\\p{L}"), "position 0", "\\p"));
  CHECK(says(message("\\1"), "position 0", "one of the escapes"));
  CHECK(says(message("\\"), "its end at position 1", "backslash"));
  CHECK(says(message("\\xg0"), "'g' at position 2", "hexadecimal"));
  CHECK(says(message("[z-a]"), "position 1", "ends no lower"));
  CHECK(says(message("[\\d-z]"), "position 1", "single characters"));
  CHECK(says(message("[^\\s\\S]"), "position 0", "some character"));
  CHECK(says(message("a]"), "']' at position 1", "backslash"));
  CHECK(says(message("\xc3"), "position 0", "UTF-8"));
  CHECK(says(message("\xc0\xaf"), "position 0", "UTF-8"));      // overlong
  CHECK(says(message("\xed\xa0\x80"), "position 0", "UTF-8"));  // a surrogate
  CHECK(says(message("a{\u00e9}"), "'\u00e9' at position 2", "a number"));
  CHECK(says(message(std::string(300, '(').c_str()), "groups inside each other"));
}

TEST_CASE("an automaton that grows without bounds is refused, and what is known of it stays") {
  // After n letters it must know which of the last twelve were an a.
  detail::byte_nfa nfa;
  const detail::nfa_part all = detail::regex_parser(nfa, "[ab]*a[ab]{12}", detail::character_form::utf8).parse();
  detail::byte_dfa dfa(std::move(nfa), all, 100'000);
  std::vector<std::int32_t> path{dfa.start()};
  std::minstd_rand random(3);
  std::string text;
  const std::string complaint = message_of<input_error>([&] {
    for (int i = 0; i < 10'000; ++i) {
      text += random() % 2 == 0 ? 'a' : 'b';
      path.push_back(dfa.next(path.back(), static_cast<std::uint8_t>(text.back())));
    }
  });
  CHECK(says(complaint, "more than 100000 bytes", "repetitions"));
  CHECK(path.size() > 20);
  for (std::size_t i = 0; i + 1 < path.size(); ++i)
    CHECK(dfa.next(path[i], static_cast<std::uint8_t>(text[i])) == path[i + 1]);
}

TEST_CASE("what is prescribed up to the next choice is cut into the longest tokens") {
  const auto written = [](const std::string& pattern, const std::string& before) {
    const token_automaton c = regular_expression(pattern, vocabulary());
    auto state = c.start();
    for (const char byte : before)
      state = c.advance(state, static_cast<unsigned char>(byte));
    std::vector<std::string> cut;
    for (auto next = c.prescribed(state); next; next = c.prescribed(state)) {
      const std::span<const std::uint32_t> mask = c.allowed(state);
      CHECK((mask[static_cast<std::size_t>(*next) / 32] >> *next % 32 & 1U) != 0);
      cut.push_back(pieces()[static_cast<std::size_t>(*next)]);
      state = c.advance(state, *next);
    }
    return cut;
  };
  using cut = std::vector<std::string>;
  CHECK(written("abcaab1[xy]", "") == cut{"abc", "aa", "b", "1"});
  CHECK(written("(ab|ac)ba|d", "") == cut{});
  CHECK(written("(ab|ac)ba|d", "a") == cut{});
  CHECK(written("(ab|ac)ba|d", "ac") == cut{"ba"});
  CHECK(written("(ab|abc)a", "") == cut{"ab"});  // abc would go beyond the choice
  CHECK(written("aba*", "") == cut{"ab"});       // the text may end
  CHECK(written("ab", "ab") == cut{});
  CHECK(written("ab", "b") == cut{});
  CHECK(written("\\xe4b", "") == cut{"\xc3\xa4", "b"});
  CHECK(written("[\\xe4\\xe5]b", "") == cut{"\xc3"});
  // Whatever no token is of, no longer one is either.
  const vocabulary_trie few({"ab", "abcd", "c", ""}, {3});
  const auto first = [&](const char* pattern) {
    const token_automaton c = regular_expression(pattern, few);
    return c.prescribed(c.start());
  };
  CHECK(first("abce") == 0);
  CHECK(first("da") == std::nullopt);
}

TEST_CASE("a vocabulary without bytes, or with an end outside it, is refused") {
  CHECK(says(message_of<input_error>([] { vocabulary_trie({"", "x"}, {1}); }), "no token of the vocabulary has bytes"));
  CHECK(says(message_of<input_error>([] { vocabulary_trie({"x"}, {1}); }), "token 1", "ends at 0"));
}

TEST_CASE("a token that is too long for a vocabulary's tree is refused by its number, unless it ends texts") {
  const auto longest = [](std::size_t n) { return std::vector<std::string>{"x", std::string(n, 'a'), ""}; };
  CHECK(vocabulary_trie(longest(65535), {2}).max_depth() == 65535);
  CHECK(says(message_of<input_error>([&] { vocabulary_trie(longest(65536), {2}); }), "token 1", "has 65536 bytes",
             "at most 65535"));
  CHECK(vocabulary_trie(longest(65536), {1}).max_depth() == 1);
}
