// SPDX-License-Identifier: BSL-1.0
// Tested by tests/constraint/regular_expression.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/constraint/automaton/byte_nfa.hpp"
#include "espalier/constraint/automaton/character_set.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/util/utf8.hpp"

namespace espalier::detail {

// Parser of a regular expression: makes the part of an automaton that accepts the texts which the expression describes
// as a whole.
class regex_parser {
 public:
  regex_parser(byte_nfa& nfa, std::string_view pattern, character_form form)
      : nfa_(nfa), pattern_(pattern), form_(form) {}

  // Adds the part of the whole pattern to the automaton, and returns it. To be called once. If `searches`, other text
  // may stand before an alternative that does not begin with ^, and after one that does not end with $.
  //
  // Errors      input_error that names the position in bytes from 0, the character there and what was expected; the
  //             input_error of byte_nfa for a pattern that is too large
  nfa_part parse(bool searches = false) {
    const auto any_text = [&] { return free_text(nfa_, 0, byte_nfa::many, false); };
    std::vector<nfa_part> all;
    do {
      const bool begins = take('^');
      nfa_part one = written_out(sequence(0));
      if (searches && !begins) one = nfa_.then(any_text(), one);
      const bool ends = take('$');
      if (searches && !ends) one = nfa_.then(one, any_text());
      all.push_back(one);
    } while (take('|'));
    if (!ends()) fail(at_ > 0 && pattern_[at_ - 1] == '$' ? "a '|' or nothing after '$'" : "a '(' before it");
    return nfa_.any_of(all);
  }

 private:
  static constexpr int max_depth = 200;
  static constexpr std::int32_t max_times = 10000;

  // A part that is to be written `least` to `most` times in a row; if most < 0, any number of times from `least` on. It
  // is written out late, so that repetitions of repetitions become one: the automaton of (a{0,60}){0,60} would be in
  // thousands of states at a time, that of a{0,3600} is in one.
  struct repetition {
    nfa_part one;
    std::int32_t least = 1, most = 1;

    bool is_single() const { return least == 1 && most == 1; }
  };

  nfa_part written_out(const repetition& r) { return nfa_.times(r.one, r.least, r.most); }

  // Repeats a repetition: `inner`, `least` to `most` times in a row. The result is one repetition if its possible
  // numbers of times have no gap and do not exceed byte_nfa::max_states; (a{3}){0,2} has gaps: 0, 3 or 6 times.
  repetition repeat(const repetition& inner, std::int32_t least, std::int32_t most) {
    if (inner.is_single()) return {inner.one, least, most};
    if (least == 1 && most == 1) return inner;
    const std::int64_t low = inner.least, high = inner.most, fewest = low * least;
    const std::int64_t most_in_all = most == 0 || high == 0 ? 0 : most < 0 || high < 0 ? -1 : high * most;
    const bool has_gap = least != most && (high < 0 ? least == 0 && low > 1 : low * (least + 1) > high * least + 1);
    if (has_gap || (std::max)(fewest, most_in_all) > byte_nfa::max_states) return {written_out(inner), least, most};
    return {inner.one, static_cast<std::int32_t>(fewest), static_cast<std::int32_t>(most_in_all)};
  }

  static bool is_digit(char c) { return '0' <= c && c <= '9'; }

  bool ends() const { return at_ >= pattern_.size(); }
  bool next_is(char c) const { return !ends() && pattern_[at_] == c; }
  bool take(char c) {
    if (!next_is(c)) return false;
    ++at_;
    return true;
  }

  [[noreturn]] void fail(std::string_view expected) const { fail_at(at_, expected); }
  [[noreturn]] void fail_at(std::size_t at, std::string_view expected) const {
    std::string found = "its end";
    if (at < pattern_.size()) {
      const std::string_view rest = pattern_.substr(at);
      found = "'" + std::string(rest.substr(0, read_utf8(rest).bytes)) + "'";
    }
    raise<input_error>("the regular expression \"", pattern_, "\" has ", found, " at position ", at, "; expected ",
                       expected, ".");
  }

  repetition alternatives(int depth) {
    if (depth > max_depth) fail("at most 200 groups inside each other");
    const repetition first = sequence(depth);
    if (!next_is('|')) return first;
    // If one alternative may be left out, all may: a?|b| is (a|b)?.
    bool is_optional = false;
    std::vector<nfa_part> all;
    const auto add = [&](const repetition& r) {
      const bool may_miss = r.least == 0 && (r.most == 0 || r.most == 1);
      is_optional = is_optional || may_miss;
      if (r.most != 0) all.push_back(may_miss ? r.one : written_out(r));
    };
    add(first);
    while (take('|'))
      add(sequence(depth));
    if (all.empty()) return {nfa_.nothing(), 0, 0};
    return {nfa_.any_of(all), is_optional ? 0 : 1, 1};
  }

  bool goes_on() const { return !ends() && pattern_[at_] != '|' && pattern_[at_] != ')' && pattern_[at_] != '$'; }

  repetition sequence(int depth) {
    if (!goes_on()) return {nfa_.nothing(), 0, 0};
    const repetition first = repeated(depth);
    if (!goes_on()) return first;
    nfa_part all = written_out(first);
    while (goes_on())
      all = nfa_.then(all, written_out(repeated(depth)));
    return {all};
  }

  repetition repeated(int depth) {
    const repetition one = atom(depth);
    const std::size_t begin = at_;
    std::int32_t least = 1, most = 1;
    if (take('*')) {
      least = 0, most = -1;
    } else if (take('+')) {
      most = -1;
    } else if (take('?')) {
      least = 0;
    } else if (take('{')) {
      least = number();
      most = take(',') ? (next_is('}') ? -1 : number()) : least;
      if (most >= 0 && most < least) fail("a second number that is not below the first");
      if (!take('}')) fail("'}'");
    }
    // A lazy quantifier prefers short texts, but describes the same texts.
    if (at_ > begin) take('?');
    if (at_ > begin && !ends() && std::string_view("*+?{").find(pattern_[at_]) != std::string_view::npos)
      fail("something else after a quantifier: possessive ones are not supported");
    return repeat(one, least, most);
  }

  std::int32_t number() {
    if (ends() || !is_digit(pattern_[at_])) fail("a number");
    std::int32_t n = 0;
    while (!ends() && is_digit(pattern_[at_])) {
      n = n * 10 + (pattern_[at_] - '0');
      if (n > max_times) fail("at most 10000 repetitions");
      ++at_;
    }
    return n;
  }

  repetition atom(int depth) {
    const std::size_t begin = at_;
    switch (pattern_[at_]) {
      case '(': {
        ++at_;
        if (take('?') && !take(':')) group_name();
        const repetition inside = alternatives(depth + 1);
        if (!take(')')) fail("')'");
        return inside;
      }
      case '[':
        return {set_part(char_class(), begin)};
      case '.':
        ++at_;
        return {set_part(character_set({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}).inverted(), begin)};
      case '\\':
        return {set_part(escape(false), begin)};
      case '*':
      case '+':
      case '?':
      case '{':
        fail("something to repeat before it");
      case '^':
        fail("'^' at the beginning alone");
      case ']':
      case '}':
        fail("a backslash before it, or a bracket that it closes");
      default:
        return {set_part(one(character()), begin)};
    }
  }

  // Takes the name of a group, as in (?<name>a) or (?P<name>a).
  void group_name() {
    const std::size_t begin = at_;
    take('P');
    const bool is_name = take('<') && !ends() && pattern_[at_] != '=' && pattern_[at_] != '!';
    while (is_name && !ends() && pattern_[at_] != '>')
      ++at_;
    if (!is_name || !take('>'))
      fail_at(begin, "':' or a name in <>: look-ahead, look-behind and flags are not supported");
  }

  nfa_part set_part(const character_set& any, std::size_t begin) {
    const character_set set = any.in(form_);
    if (set.empty()) fail_at(begin, "a class that some character is in");
    return set.add_to(nfa_, form_);
  }

  static character_set one(std::uint32_t c) { return character_set({{c, c}}); }

  // Takes the next character of the pattern.
  std::uint32_t character() {
    const utf8_character next = read_utf8(pattern_.substr(at_));
    if (next.what != utf8_character::state::valid) fail("a character in UTF-8");
    at_ += next.bytes;
    return next.code;
  }

  character_set char_class() {
    ++at_;
    const bool is_inverted = take('^');
    character_set all;
    bool is_first = true;
    while (!next_is(']') || is_first) {
      if (ends()) fail("']'");
      is_first = false;
      const std::size_t begin = at_;
      character_set low = next_is('\\') ? escape(true) : one(character());
      const bool is_range = next_is('-') && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']';
      if (is_range) {
        ++at_;
        const character_set high = next_is('\\') ? escape(true) : one(character());
        if (low.size() != 1 || high.size() != 1) fail_at(begin, "single characters at both ends of a range");
        if (high.lowest() < low.lowest()) fail_at(begin, "a range that ends no lower than it begins");
        low = character_set({{low.lowest(), high.lowest()}});
      }
      all.add(low);
    }
    ++at_;
    return is_inverted ? all.inverted() : all;
  }

  character_set escape(bool in_class) {
    const std::size_t begin = at_++;
    if (ends()) fail("what the backslash escapes");
    const char c = pattern_[at_++];
    const character_set digits({{'0', '9'}}), words({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}),
        spaces({{'\t', '\r'},
                {' ', ' '},
                {0xA0, 0xA0},
                {0x1680, 0x1680},
                {0x2000, 0x200A},
                {0x2028, 0x2029},
                {0x202F, 0x202F},
                {0x205F, 0x205F},
                {0x3000, 0x3000},
                {0xFEFF, 0xFEFF}});
    switch (c) {
      case 'd':
        return digits;
      case 'D':
        return digits.inverted();
      case 'w':
        return words;
      case 'W':
        return words.inverted();
      case 's':
        return spaces;
      case 'S':
        return spaces.inverted();
      case 'n':
        return one('\n');
      case 't':
        return one('\t');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        return one(0);
      case 'x':
        return one(hexadecimal(2));
      case 'u':
        return one(hexadecimal(4));
      default:
        break;
    }
    if (in_class && c == 'b') return one('\b');
    if (c == 'b' || c == 'B' || c == 'p' || c == 'P')
      fail_at(begin, "something else: \\b, \\B, \\p and \\P are not supported");
    const bool is_name = is_digit(c) || ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z');
    if (is_name) fail_at(begin, "one of the escapes \\d \\D \\w \\W \\s \\S \\n \\t \\r \\f \\v \\0 \\xHH \\uHHHH");
    --at_;
    return one(character());
  }

  std::uint32_t hexadecimal(int digits) {
    std::uint32_t n = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = ends() ? '\0' : pattern_[at_];
      const int d = is_digit(c)            ? c - '0'
                    : 'a' <= c && c <= 'f' ? c - 'a' + 10
                    : 'A' <= c && c <= 'F' ? c - 'A' + 10
                                           : -1;
      if (d < 0) fail("a hexadecimal digit");
      n = n * 16 + static_cast<std::uint32_t>(d);
      ++at_;
    }
    return n;
  }

  byte_nfa& nfa_;
  std::string_view pattern_;
  character_form form_;
  std::size_t at_ = 0;
};

}  // namespace espalier::detail
