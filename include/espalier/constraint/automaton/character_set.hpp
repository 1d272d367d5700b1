// SPDX-License-Identifier: BSL-1.0
// Tested by tests/constraint/regular_expression.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/constraint/automaton/byte_nfa.hpp"

namespace espalier::detail {

// How characters are written as bytes: in UTF-8, or as in a JSON string, where quotation mark, backslash and some
// control characters are written as a backslash and one further character.
enum class character_form { utf8, json_string };

// A set of characters of Unicode, surrogates excepted.
class character_set {
 public:
  static constexpr std::uint32_t last = 0x10FFFF;

  struct range {
    std::uint32_t low, high;
  };

  character_set() = default;
  character_set(std::vector<range> ranges) : ranges_(std::move(ranges)) { normalise(); }

  bool empty() const { return ranges_.empty(); }

  character_set& add(const character_set& other) {
    ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
    normalise();
    return *this;
  }

  // The characters that are not in the set.
  character_set inverted() const {
    std::vector<range> others;
    std::uint32_t next = 0;
    for (const range& r : ranges_) {
      if (r.low > next) others.push_back({next, r.low - 1});
      next = r.high + 1;
    }
    if (next <= last) others.push_back({next, last});
    return others;
  }

  // size() is the number of characters in the set, lowest() the lowest of them.
  //
  // Pre         lowest(): the set is not empty
  std::uint32_t size() const {
    std::uint32_t n = 0;
    for (const range& r : ranges_)
      n += r.high - r.low + 1;
    return n;
  }
  std::uint32_t lowest() const { return ranges_.front().low; }

  // The characters of the set that can be written in this form. For JSON, control characters that need more than a
  // backslash and one further character are left out.
  character_set in(character_form form) const {
    if (form == character_form::utf8) return *this;
    character_set all;
    const character_set hidden({{0, 7}, {0xB, 0xB}, {0xE, 0x1F}}), rest = hidden.inverted();
    for (const range& r : ranges_) {
      for (const range& other : rest.ranges_) {
        const std::uint32_t low = (std::max)(r.low, other.low), high = (std::min)(r.high, other.high);
        if (low <= high) all.ranges_.push_back({low, high});
      }
    }
    return all;
  }

  // Adds to the automaton a part that accepts one character of the set, and returns the part.
  //
  // Pre         the set is not empty, and all of it can be written in this form: see in()
  nfa_part add_to(byte_nfa& nfa, character_form form, byte_nfa::role first = byte_nfa::role::none) const {
    builder all{nfa, first};
    for (const range& r : ranges_) {
      std::uint32_t low = r.low;
      for (const auto& [special, name] : escaped) {
        if (form == character_form::utf8 || special < low || special > r.high) continue;
        if (special > low) add_range(all, low, special - 1);
        const auto mark = static_cast<std::uint8_t>(name);
        all.parts.push_back(nfa.then(nfa.byte('\\', '\\', first), nfa.byte(mark, mark)));
        low = special + 1;
      }
      if (low <= r.high) add_range(all, low, r.high);
    }
    return nfa.any_of(all.parts);
  }

 private:
  struct builder {
    byte_nfa& nfa;
    byte_nfa::role first;  // the role of states that take a character's first byte
    std::vector<nfa_part> parts{};
  };

  // A character that JSON writes as a backslash and `name`. `escaped` is in ascending order.
  struct escaped_character {
    std::uint32_t character;
    char name;
  };
  static constexpr escaped_character escaped[] = {{'\b', 'b'}, {'\t', 't'}, {'\n', 'n'}, {'\f', 'f'},
                                                  {'\r', 'r'}, {'"', '"'},  {'\\', '\\'}};

  // Adds the sequences of byte ranges that accept a range of characters, as RE2 does: the range is cut where the number
  // of bytes changes, and where a later byte cannot take every value.
  static void add_range(builder& all, std::uint32_t low, std::uint32_t high) {
    for (const std::uint32_t most : {0x7FU, 0x7FFU, 0xFFFFU}) {
      if (low <= most && most < high) {
        add_range(all, low, most);
        return add_range(all, most + 1, high);
      }
    }
    for (int i = 1; i < 4 && high > 0x7F; ++i) {
      const std::uint32_t rest = (1U << (6 * i)) - 1;
      if ((low & ~rest) == (high & ~rest)) continue;
      if ((low & rest) != 0) {
        add_range(all, low, low | rest);
        return add_range(all, (low | rest) + 1, high);
      }
      if ((high & rest) != rest) {
        add_range(all, low, (high & ~rest) - 1);
        return add_range(all, high & ~rest, high);
      }
    }
    const auto a = utf8(low), b = utf8(high);
    nfa_part one = all.nfa.byte(a[0], b[0], all.first);
    for (std::size_t i = 1; i < a.size(); ++i)
      one = all.nfa.then(one, all.nfa.byte(a[i], b[i]));
    all.parts.push_back(one);
  }

  static std::vector<std::uint8_t> utf8(std::uint32_t c) {
    const auto byte = [](std::uint32_t x) { return static_cast<std::uint8_t>(x); };
    const auto more = [&](int i) { return byte(0x80 | (c >> 6 * i & 0x3F)); };
    if (c < 0x80) return {byte(c)};
    if (c < 0x800) return {byte(0xC0 | c >> 6), more(0)};
    if (c < 0x10000) return {byte(0xE0 | c >> 12), more(1), more(0)};
    return {byte(0xF0 | c >> 18), more(2), more(1), more(0)};
  }

  // Sorts the ranges, merges those that touch, and leaves out surrogates.
  void normalise() {
    std::sort(ranges_.begin(), ranges_.end(), [](const range& a, const range& b) { return a.low < b.low; });
    std::vector<range> merged;
    for (const range& r : ranges_) {
      if (!merged.empty() && r.low <= merged.back().high + 1)
        merged.back().high = (std::max)(merged.back().high, r.high);
      else
        merged.push_back(r);
    }
    ranges_.clear();
    for (const range& r : merged) {
      if (r.low < 0xD800) ranges_.push_back({r.low, (std::min)(r.high, std::uint32_t{0xD7FF})});
      if (r.high > 0xDFFF) ranges_.push_back({(std::max)(r.low, std::uint32_t{0xE000}), r.high});
    }
  }

  std::vector<range> ranges_;
};

// The part that accepts `least` to `most` characters in a string of JSON; most < 0: any number from `least` on. If
// `has_codes`, a character may also be written as \uHHHH or as a surrogate pair of two such codes, and / as \/.
inline nfa_part free_text(byte_nfa& nfa, std::int32_t least, std::int32_t most, bool has_codes) {
  using role = byte_nfa::role;
  if (least == 0 && most == 0) return nfa.nothing();
  // States of role counted_text need the count of a counted repetition. times() makes no such repetition if `most` is
  // 1, or if there is no `most` and `least` is 0 or 1: then the states have another role.
  const role first = most < 0 && least < 2 ? role::free_text : most == 1 ? role::none : role::counted_text;
  const character_form form = character_form::json_string;
  nfa_part all = character_set({{0, character_set::last}}).in(form).add_to(nfa, form, first);
  if (has_codes) {
    const auto one_of = [&](std::string_view bytes) {
      std::vector<nfa_part> parts;
      for (const char c : bytes)
        parts.push_back(nfa.byte(static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(c)));
      return nfa.any_of(parts);
    };
    const auto hexadecimal = [&](int n) {
      nfa_part digits = nfa.nothing();
      for (int i = 0; i < n; ++i)
        digits = nfa.then(digits, nfa.any_of({nfa.byte('0', '9'), nfa.byte('A', 'F'), nfa.byte('a', 'f')}));
      return digits;
    };
    // A code that is no half of a surrogate pair begins with another digit than D, or with D and one of 0 to 7.
    nfa_part single = nfa.any_of({nfa.byte('0', '9'), one_of("ABCEFabcef")});
    single = nfa.either(nfa.then(single, hexadecimal(3)),
                        nfa.then(nfa.then(one_of("Dd"), nfa.byte('0', '7')), hexadecimal(2)));
    nfa_part pair = nfa.then(nfa.then(one_of("Dd"), one_of("89ABab")), hexadecimal(2));
    pair = nfa.then(nfa.then(pair, nfa.bytes("\\u")),
                    nfa.then(nfa.then(one_of("Dd"), one_of("CDEFcdef")), hexadecimal(2)));
    const nfa_part code = nfa.then(nfa.byte('u', 'u'), nfa.either(single, pair));
    all = nfa.either(all, nfa.then(nfa.byte('\\', '\\', first), nfa.either(code, nfa.byte('/', '/'))));
  }
  return nfa.times(all, least, most);
}

}  // namespace espalier::detail
