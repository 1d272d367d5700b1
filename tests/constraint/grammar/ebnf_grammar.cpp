// SPDX-License-Identifier: BSL-1.0
#include "espalier/constraint/grammar/ebnf_grammar.hpp"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "../../examples/models/vocabulary_of.hpp"
#include "catch.hpp"
#include "espalier/constraint/regular_expression.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

constexpr token_id end_of_text = 256;
constexpr token_id without_bytes = 257;

// Each byte, then the end, a special token, and longer pieces.
vocabulary_trie bytes() {
  std::vector<std::string> pieces;
  for (int c = 0; c < 256; ++c)
    pieces.emplace_back(1, static_cast<char>(c));
  for (const char* more : {"</s>", "", "ab", "aab", "ba", "b)", "\xc3\xa4", "\xe2\x82"})
    pieces.emplace_back(more);
  return vocabulary_trie(pieces, {end_of_text});
}

const vocabulary_trie& real_vocabulary() {
  static const vocabulary_trie all = models::vocabulary_of(tokenizer::load(ESPALIER_TEST_MODELS "/tokenizer.model"));
  return all;
}

bool allows(std::span<const std::uint32_t> mask, token_id t) {
  const auto word = static_cast<std::size_t>(t) / 32;
  return word < mask.size() && (mask[word] >> t % 32 & 1U) != 0;
}

std::vector<token_id> tokens_of(std::span<const std::uint32_t> mask, std::int32_t vocab) {
  std::vector<token_id> all;
  for (token_id t = 0; t < vocab; ++t) {
    if (allows(mask, t)) all.push_back(t);
  }
  return all;
}

template <class ConstraintT>
auto state_after(ConstraintT& c, const std::vector<token_id>& tokens) {
  auto state = c.start();
  for (const token_id t : tokens)
    state = c.advance(state, t);
  return state;
}

std::string bad(std::string_view grammar) {
  return message_of<input_error>([&] { ebnf_grammar(grammar, bytes()); });
}

const char* const as_then_bs = "root ::= \"a\" root \"b\" | \"\"";

// Whether a text of a and b begins one of a^n b^n; whether it is one.
bool begins(const std::string& text) {
  const std::size_t n = text.find_first_not_of('a');
  if (n == std::string::npos) return true;
  return text.find_first_not_of('b', n) == std::string::npos && text.size() - n <= n;
}
bool is_whole(const std::string& text) {
  return begins(text) && text.size() == 2 * (std::min)(text.size(), text.find_first_not_of('a'));
}

}  // namespace

TEST_CASE("a grammar that no automaton is allows the tokens that lead on, and the end where a text is whole") {
  const vocabulary_trie vocabulary = bytes();
  ebnf_grammar c(as_then_bs, vocabulary);
  int asked = 0;
  std::vector<std::vector<token_id>> paths{{}};
  std::vector<std::string> texts{""};
  for (std::size_t i = 0; i < paths.size(); ++i) {
    INFO(texts[i]);
    const auto mask = c.allowed(state_after(c, paths[i]));
    ++asked;
    std::vector<token_id> expected;
    for (token_id t = 0; t < vocabulary.size(); ++t) {
      const std::string& piece = vocabulary.piece(t);
      if (t == end_of_text ? is_whole(texts[i]) : !piece.empty() && begins(texts[i] + piece)) expected.push_back(t);
    }
    REQUIRE(tokens_of(mask, static_cast<std::int32_t>(mask.size()) * 32) == expected);
    if (texts[i].size() >= 9) continue;
    for (const token_id t : expected) {
      if (t == end_of_text) continue;
      paths.push_back(paths[i]);
      paths.back().push_back(t);
      texts.push_back(texts[i] + vocabulary.piece(t));
    }
  }
  std::cout << "ebnf_grammar: " << asked << " masks as a^n b^n has them\n";
}

TEST_CASE("states of a tree are asked for in any order, of any copy") {
  const vocabulary_trie vocabulary = bytes();
  const std::string grammar =
      GENERATE(as<std::string>(), as_then_bs,
               "root ::= \"(\" root \")\" | item (\"b)\" | \"\")\nitem ::= [ab]+ | \"\\\"\" [^\"]* \"\\\"\"",
               "root ::= some (\"(\" some)*\nsome[max_tokens=2] ::= [ab]*");
  INFO(grammar);
  ebnf_grammar shared(grammar, vocabulary);
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return random() % n; };
  std::vector<std::vector<token_id>> paths{{}};
  std::vector<ebnf_grammar::state_type> states{shared.start()};
  std::vector<std::vector<std::uint32_t>> masks;
  for (int i = 1; i < 60; ++i) {
    const std::size_t parent = below(states.size());
    ebnf_grammar of_parent = shared;
    auto allowed = tokens_of(of_parent.allowed(states[parent]), vocabulary.size());
    allowed.insert(allowed.end(), {'a', 'b'});  // forbidden at times, as here where a rule is at its max_tokens
    allowed.push_back(
        static_cast<token_id>(below(static_cast<std::size_t>(vocabulary.size()))));  // most often forbidden
    const token_id token = allowed[below(allowed.size())];
    paths.push_back(paths[parent]);
    paths.back().push_back(token);
    states.push_back(shared.advance(states[parent], token));
  }
  for (const auto& path : paths) {
    ebnf_grammar fresh(grammar, vocabulary);
    const auto mask = fresh.allowed(state_after(fresh, path));
    masks.emplace_back(mask.begin(), mask.end());
  }
  std::vector<ebnf_grammar> copies(3, shared);
  for (int i = 0; i < 600; ++i) {
    ebnf_grammar& one = copies[below(copies.size())];
    const std::size_t s = below(states.size());
    const auto mask = one.allowed(states[s]);
    REQUIRE(std::vector<std::uint32_t>(mask.begin(), mask.end()) == masks[s]);
    if (below(50) == 0) one = copies[below(copies.size())];
  }
}

TEST_CASE("after what is not allowed, and after the end, nothing is") {
  ebnf_grammar c("root ::= \"ab\"*", bytes());
  const auto nothing = [&](const std::vector<token_id>& tokens) {
    return tokens_of(c.allowed(state_after(c, tokens)), 512).empty();
  };
  CHECK(nothing({'b'}));
  CHECK(nothing({'b', 'a', 'b'}));
  CHECK(nothing({'a', end_of_text}));
  CHECK(nothing({end_of_text}));
  CHECK(nothing({end_of_text, 'a'}));
  CHECK(nothing({without_bytes}));
  CHECK(nothing({-1}));
  CHECK(nothing({100000}));
  CHECK(!nothing({'a', 'b'}));
  CHECK(!nothing({}));
}

TEST_CASE("masks over a real vocabulary are those of our automaton on the same language") {
  struct {
    const char* grammar;
    const char* pattern;
  } const languages[] = {{"root ::= [0-9]+ \" \" [A-Z] [a-z]+ \" \" [0-9]{4}", "[0-9]+ [A-Z][a-z]+ [0-9]{4}"},
                         {"root ::= (\"It was\" | \"There were\") \" \" [a-z]+ tail\ntail ::= \" \" [a-z ]{5,20} \".\"",
                          "(It was|There were) [a-z]+ [a-z ]{5,20}\\."},
                         {"root ::= \"\\\"\" [^\"]* \"\\\"\"", "\"[^\"]*\""},
                         {"root ::= ([a-z]+ \", \")* [a-z]+ # a list\n", "([a-z]+, )*[a-z]+"},
                         {"root ::= word | \"\xc3\xa4\" word?\nword ::= [\xc3\xa0-\xe2\x82\xac] {1,3}",
                          "[\xc3\xa0-\xe2\x82\xac]{1,3}|\xc3\xa4[\xc3\xa0-\xe2\x82\xac]{0,3}"}};
  const vocabulary_trie& vocabulary = real_vocabulary();
  std::mt19937 random(11);
  int asked = 0;
  for (const auto& language : languages) {
    INFO(language.grammar);
    ebnf_grammar grammar(language.grammar, vocabulary);
    token_automaton automaton = regular_expression(language.pattern, vocabulary);
    for (int text = 0; text < 20; ++text) {
      auto a = grammar.start();
      auto b = automaton.start();
      std::string written;
      for (int i = 0; i < 24; ++i) {
        INFO(written);
        const auto expected = tokens_of(automaton.allowed(b), vocabulary.size());
        REQUIRE(tokens_of(grammar.allowed(a), vocabulary.size()) == expected);
        ++asked;
        const token_id t = expected.at(random() % expected.size());
        if (vocabulary.piece(t).empty()) break;
        written += vocabulary.piece(t);
        a = grammar.advance(a, t);
        b = automaton.advance(b, t);
      }
    }
  }
  std::cout << "ebnf_grammar: " << asked << " masks of " << vocabulary.size() << " tokens as the automaton has them\n";
}

TEST_CASE("a grammar with an error is refused, with the place and what was expected") {
  CHECK(says(bad("root ::= \"a\"\nroot2 ::= )"), "this is no grammar", "line 2, column 11", "xpect"));
  CHECK(says(bad("root ::= \"a"), "line 1", "Expect \" in string literal"));
  CHECK(says(bad("root ::= word"), "line 1, column 10", "Rule \"word\" is not defined"));
  CHECK(says(bad("text ::= \"a\""), "The root rule with name \"root\" is not found"));
  CHECK(says(bad("root ::= \"a\"\nroot ::= \"b\""), "line 2", "defined multiple times"));
  CHECK(says(bad("root ::= [z-a]"), "line 1", "lower bound is larger than upper bound"));
  CHECK(says(bad("root ::= \"a\"{3,2}"), "line 1", "ower bound"));
  CHECK(says(bad(""), "this is no grammar"));
  CHECK(says(bad("root ::= \"\xff\""), "line 1", "UTF8"));
  CHECK(says(bad(std::string_view("root ::= \"a\"\0", 13)), "a byte of zero at position 12"));
  CHECK(says(bad("root ::= root \"a\""), "no text that begins with any of the vocabulary's tokens"));
  for (const char* wrong : {"root ::= \"a", "root ::= word", ""})
    CHECK(!says(bad(wrong), ".cc"));
  ebnf_grammar other("text ::= \"a\"", bytes(), "text");
  CHECK(allows(other.allowed(other.start()), 'a'));
}

TEST_CASE("copies serve threads of their own") {
  const ebnf_grammar shared(as_then_bs, bytes());
  std::vector<int> right(4);
  std::vector<std::thread> threads;
  token_path common;
  for (int i = 0; i < 1000; ++i)
    common = token_path(common, 'a');
  for (int& count : right)
    threads.emplace_back([&count, c = shared, state = common]() mutable {
      for (int i = 0; i < 200; ++i) {
        if (tokens_of(c.allowed(state), 264).size() > 1) ++count;
        state = c.advance(state, 'a');
      }
    });
  common = {};
  for (std::thread& t : threads)
    t.join();
  CHECK(right == std::vector<int>(4, 200));
}

TEST_CASE("paths share their beginnings, and long ones are freed without recursion") {
  token_path path;
  CHECK(path.empty());
  for (int i = 0; i < 1000000; ++i)
    path = token_path(path, i % 7);
  CHECK(path.size() == 1000000);
  const token_path before = path.before();
  const token_path one(before, 1), other(before, 1);
  CHECK(!(one == other));
  CHECK(one.before() == other.before());
  path = {};
  CHECK(one.before().size() == 999999);
  CHECK(before.token() == 999998 % 7);
}
