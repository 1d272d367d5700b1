// SPDX-License-Identifier: BSL-1.0
// Tested by tests/constraint/schema/json_schema.cpp
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "espalier/constraint/automaton/byte_dfa.hpp"
#include "espalier/constraint/automaton/byte_nfa.hpp"
#include "espalier/constraint/automaton/character_set.hpp"
#include "espalier/constraint/automaton/regex_parser.hpp"

namespace espalier::detail {

// A bound of numbers: digits * 10^exponent. If is_excluded, the bound itself is not allowed.
struct decimal_bound {
  std::int64_t digits = 0;
  int exponent = 0;
  bool is_excluded = false;
};

// A range of numbers: makes the part of an automaton that accepts the whole or decimal numbers between bounds, without
// leading zeros and exponents. The numbers have at most 15 digits, before and after the point together, so that no two
// of them are read as the same double: a number above a bound here is above it for every reader.
class decimal_range {
 public:
  static constexpr int most_digits = 15;
  static constexpr std::size_t most_rests = 6000;

  std::vector<decimal_bound> lows, highs;
  bool is_whole = true;
  std::int64_t multiple = 1;  // whole numbers must be multiples of this number, which is at most 10^6

  explicit decimal_range(byte_nfa& nfa) : nfa_(nfa) {}

  // Adds the part to the automaton, and returns it; no value if there is no such number, or if the automaton would be
  // too large. To be called once.
  std::optional<nfa_part> part() {
    end_ = nfa_.nothing().begin;
    std::int32_t all = none, minus = none;
    for (n_before_ = 1; n_before_ <= most_digits; ++n_before_) {
      n_after_ = is_whole ? 0 : most_digits - n_before_;
      const std::int64_t unit = power(n_after_);
      const std::int64_t first = n_before_ == 1 ? 0 : power(n_before_ - 1) * unit, last = power(n_before_) * unit - 1;
      std::int64_t low = -limit, high = limit;
      for (const decimal_bound& b : lows)
        low = (std::max)(low, scaled(b, true));
      for (const decimal_bound& b : highs)
        high = (std::min)(high, scaled(b, false));
      all = either(all, between((std::max)(low, first), (std::min)(high, last)));
      minus = either(minus, between((std::max)({-high, first, std::int64_t{1}}), (std::min)(-low, last)));
    }
    if (minus != none) all = either(all, through('-', '-', minus));
    if (all == none || is_too_large()) return std::nullopt;
    return nfa_part{all, end_};
  }

  bool is_too_large() const { return rests_.size() > most_rests; }

 private:
  static constexpr std::int32_t none = -1;
  static constexpr std::int64_t limit = 1'000'000'000'000'000;  // above all numbers of 15 digits

  static std::int64_t power(int exponent) {
    std::int64_t all = 1;
    for (; exponent > 0; --exponent)
      all *= 10;
    return all;
  }

  // The lowest number that a lower bound allows, or the highest that an upper bound allows, in units of the last digit;
  // `limit` or -limit if the bound is not between these.
  std::int64_t scaled(const decimal_bound& bound, bool is_lower) const {
    const bool is_negative = bound.digits < 0;
    auto n = static_cast<std::uint64_t>(bound.digits);
    if (is_negative) n = 0 - n;
    constexpr std::uint64_t most = limit;
    bool is_exact = true;
    int exponent = bound.exponent + n_after_;
    for (; exponent > 0 && n > 0 && n < most; --exponent)
      n *= 10;
    for (; exponent < 0 && n > 0; ++exponent) {
      is_exact = is_exact && n % 10 == 0;
      n /= 10;
    }
    if (n >= most) return is_negative ? -limit : limit;
    const std::int64_t whole = is_negative ? -static_cast<std::int64_t>(n) : static_cast<std::int64_t>(n);
    // A bound that is not exact was cut toward zero.
    const bool moves = is_exact ? bound.is_excluded : is_negative != is_lower;
    return whole + (!moves ? 0 : is_lower ? 1 : -1);
  }

  // The state from which the numbers from `low` to `high` are read, in units of the last digit.
  std::int32_t between(std::int64_t low, std::int64_t high) {
    if (low > high) return none;
    low_ = std::to_string(low), high_ = std::to_string(high);
    const auto n = static_cast<std::size_t>(n_before_ + n_after_);
    low_.insert(0, n - low_.size(), '0');
    high_.insert(0, n - high_.size(), '0');
    // If the leading digits of a whole number are above those of the lower bound and below those of the upper bound,
    // the state for the other digits does not depend on the bounds. Such states are kept for numbers of all lengths.
    if (!is_too_large()) {
      for (auto r = rests_.begin(); r != rests_.end();)
        r = is_whole && !std::get<1>(r->first) && !std::get<2>(r->first) ? std::next(r) : rests_.erase(r);
    }
    return rest(0, true, true, 0);
  }

  // The state from which the digits from place `at` on are read. `at_low`: the digits before `at` are those of low_.
  // `at_high`: they are those of high_. `sum`: the value of the digits before `at`, modulo `multiple`.
  std::int32_t rest(int at, bool at_low, bool at_high, std::int64_t sum) {
    const int left = n_before_ + n_after_ - at;
    if (left == 0) return sum == 0 ? end_ : none;
    if (is_too_large() || (!at_low && !at_high && (multiple - sum) % multiple >= power(left))) return none;
    const auto key = std::tuple(left, at_low, at_high, sum);
    const auto known = rests_.find(key);
    if (known != rests_.end()) return known->second;
    const auto place = static_cast<std::size_t>(at);
    const char first = at_low ? low_[place] : '0', last = at_high ? high_[place] : '9';
    std::int32_t all = none, to = none;
    char begin = first;  // the first of the digits that lead to `to`
    for (char c = first; c <= last; ++c) {
      const std::int64_t value = power(left - 1) % multiple * (c - '0');
      const std::int32_t next = rest(at + 1, at_low && c == first, at_high && c == last, (sum + value) % multiple);
      if (next == to) continue;
      if (to != none) all = either(all, through(begin, static_cast<char>(c - 1), to));
      to = next, begin = c;
    }
    if (to != none) all = either(all, through(begin, last, to));
    if (n_after_ > 0 && at >= n_before_) {
      if (at == n_before_ && all != none) all = through('.', '.', all);
      const bool may_end = !at_low || low_.find_first_not_of('0', place) == std::string::npos;
      if (may_end) all = either(all, end_);
    }
    return rests_[key] = all;
  }

  std::int32_t either(std::int32_t a, std::int32_t b) {
    if (a == none || b == none) return a == none ? b : a;
    const std::int32_t s = nfa_.nothing().begin;
    nfa_.link(s, a);
    nfa_.link(s, b);
    return s;
  }

  std::int32_t through(char low, char high, std::int32_t to) {
    const nfa_part one = nfa_.byte(static_cast<std::uint8_t>(low), static_cast<std::uint8_t>(high));
    nfa_.link(one.end, to);
    return one.begin;
  }

  byte_nfa& nfa_;
  std::int32_t end_ = none;
  int n_before_ = 0, n_after_ = 0;  // number of digits before the point, and largest number of digits after it
  std::string low_, high_;          // all digits of the lowest and the highest number, without the point
  std::map<std::tuple<int, bool, bool, std::int64_t>, std::int32_t> rests_;
};

// True if a part that `make` adds to an automaton accepts a text.
template <class MakeT>
bool part_accepts(std::string_view text, const MakeT& make) {
  byte_nfa nfa;
  const nfa_part all = make(nfa);
  byte_dfa dfa(std::move(nfa), all);
  std::int32_t state = dfa.start();
  for (const char c : text)
    state = dfa.next(state, static_cast<std::uint8_t>(c));
  return dfa.accepts(state);
}

// A string as JSON writes it, with its quotation marks.
inline std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump();
}

// True if a pattern of a schema is found in a key.
inline bool finds(const std::string& pattern, const std::string& key) {
  const std::string text = json_text(key);
  return part_accepts(std::string_view(text).substr(1, text.size() - 2), [&](byte_nfa& nfa) {
    return regex_parser(nfa, pattern, character_form::json_string).parse(true);
  });
}

// Patterns that a text in a JSON string must match all at once.
class common_patterns {
 public:
  static constexpr std::size_t most_states = 1 << 14;

  // Adds a pattern. If it `searches`, other text may stand before and after the text that it describes.
  void add(std::string pattern, bool searches) { all_.emplace_back(std::move(pattern), searches); }

  // The part that accepts the texts of `least` to `most` characters that match all patterns; if most < 0, of `least`
  // characters or more. It follows the automaton of side_by_side() and counts characters: it has one place for each
  // state of that automaton, number of characters and position inside a character. No value if there are more than
  // most_states places.
  std::optional<nfa_part> part(byte_nfa& nfa, std::int32_t least, std::int32_t most) const {
    std::vector<std::int32_t> starts;
    byte_dfa dfa = side_by_side(starts);
    struct place {
      std::int32_t state, characters, left;  // left: bytes until the next character begins
      auto operator<=>(const place&) const = default;
    };
    std::map<place, std::int32_t> known;
    std::vector<place> open;
    const std::int32_t end = nfa.nothing().begin;
    const auto state_of = [&](const place& p) {
      const auto [at, is_new] = known.try_emplace(p, -1);
      if (is_new) {
        at->second = nfa.nothing().begin;
        open.push_back(p);
      }
      return at->second;
    };
    const std::int32_t begin = state_of({dfa.start(), 0, 0});
    while (!open.empty()) {
      if (known.size() > most_states) return std::nullopt;
      const place p = open.back();
      open.pop_back();
      std::int32_t from = known[p];
      const auto leads_to = [&](std::int32_t to) {
        const std::int32_t next = nfa.nothing().begin;
        nfa.link(from, to);
        nfa.link(from, next);
        from = next;
      };
      if (p.left == 0 && n_ends(dfa, p.state) == starts.size() && p.characters >= least) leads_to(end);
      for (int first = 0, last = 0; first < 256; first = last) {
        const auto to = [&](int byte) {
          place q{dfa.next(p.state, static_cast<std::uint8_t>(byte)), p.characters, p.left - 1};
          if (p.left == 0)
            q.left = byte == '\\' || (0xC0 <= byte && byte < 0xE0) ? 1 : byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : 0;
          if (q.left == 0) ++q.characters;
          if (q.characters > (most < 0 ? least : most)) {
            if (most >= 0) q.state = byte_dfa::dead;
            q.characters = least;
          }
          return q;
        };
        const place q = to(first);
        for (last = first + 1; last < 256 && to(last) == q;)
          ++last;
        if (q.state == byte_dfa::dead || !has_all(dfa, q.state, starts)) continue;
        const nfa_part one = nfa.byte(static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(last - 1));
        nfa.link(one.end, state_of(q));
        leads_to(one.begin);
      }
    }
    return nfa_part{begin, end};
  }

  // True if a text can match all patterns, or if there are too many states to tell.
  bool have_text() const {
    std::vector<std::int32_t> starts;
    byte_dfa dfa = side_by_side(starts);
    constexpr std::int32_t most = 1 << 11;
    for (std::int32_t state = 0; state < dfa.size() && state < most; ++state) {
      if (n_ends(dfa, state) == starts.size()) return true;
      for (int byte = 0; byte < 256; ++byte)
        (void)dfa.next(state, static_cast<std::uint8_t>(byte));
    }
    return dfa.size() >= most;
  }

 private:
  // The deterministic automaton that reads all patterns side by side. Each pattern ends in a state of role stop. Sets
  // starts[i] to the lowest state number of pattern i.
  byte_dfa side_by_side(std::vector<std::int32_t>& starts) const {
    byte_nfa own;
    std::vector<nfa_part> parts;
    for (const auto& [text, searches] : all_) {
      starts.push_back(own.size());
      const nfa_part one = regex_parser(own, text, character_form::json_string).parse(searches);
      own.link(one.end, own.stop());
      parts.push_back({one.begin, own.nothing().end});
    }
    const nfa_part both = own.any_of(parts);
    return byte_dfa(std::move(own), both);
  }

  // Number of patterns that end in a state.
  static std::size_t n_ends(const byte_dfa& dfa, std::int32_t state) {
    std::size_t n = 0;
    for (const byte_dfa::config& c : dfa.configs(state))
      n += dfa.nfa()[c.s].is == byte_nfa::role::stop ? 1U : 0U;
    return n;
  }

  // True if, in a state, no pattern has failed yet: each has just ended or can go on. `starts` comes from
  // side_by_side().
  static bool has_all(const byte_dfa& dfa, std::int32_t state, const std::vector<std::int32_t>& starts) {
    std::vector<char> has(starts.size(), 0);
    for (const byte_dfa::config& c : dfa.configs(state))
      has[static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), c.s) - starts.begin()) - 1] = 1;
    return std::find(has.begin(), has.end(), 0) == has.end();
  }

  std::vector<std::pair<std::string, bool>> all_;
};

// A format of strings that JSON Schema names. `pattern` describes the texts that a constraint allows: all of them are
// valid, but some valid texts are left out. `shortest` and `longest` are their lengths in characters; longest is -1 if
// there is no longest length.
struct string_format {
  std::string pattern;
  std::int32_t shortest, longest;
};

inline constexpr std::string_view string_format_names =
    "date, time, date-time, uuid, ipv4, ipv6, email, hostname and uri";

// The format of this name; its pattern is empty if the name is not one of string_format_names. `is_short`: the schema
// allows fewer than 64 characters. No host label, and no part before the @ of an email, can then be too long, so the
// pattern does not limit these.
//
// Source      RFC 3339 (without leap seconds and the year 0000, which many programs refuse), RFC 4122, RFC 4291
//             (without dotted parts), RFC 5321 (dot-strings at a host of two or three labels), RFC 1123, RFC 3986 (a
//             path, or a host with or without a port)
inline string_format string_format_of(std::string_view name, bool is_short) {
  const auto text = [](auto... pieces) { return (std::string() + ... + pieces); };
  const std::string year = "(000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})";
  const std::string leap = "(\\d\\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)";
  const std::string date = text("(", year, "-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|",
                                "02-(0[1-9]|1\\d|2[0-8]))|", leap, "-02-29)");
  const std::string hour = "([01]\\d|2[0-3]):[0-5]\\d";
  const std::string time = text(hour, ":[0-5]\\d(\\.\\d{1,6})?(Z|[-+]", hour, ")");
  // Labels of at most 63 characters without two hyphens in a row; the last one begins with a letter.
  const std::string bound = is_short ? "*" : "{0,31}";
  const std::string label = "[a-zA-Z0-9](-?[a-zA-Z0-9])" + bound, last = "[a-zA-Z](-?[a-zA-Z0-9])" + bound;
  const std::string byte = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
  if (name == "date") return {date, 10, 10};
  if (name == "time") return {time, 9, 21};
  if (name == "date-time") return {text(date, "T", time), 20, 32};
  if (name == "uuid") {
    const std::string four = "[0-9a-fA-F]{4}";
    return {text(four, four, "-", four, "-", four, "-", four, "-", four, four, four), 36, 36};
  }
  if (name == "ipv4") return {text(byte, "(\\.", byte, "){3}"), 7, 15};
  if (name == "ipv6") {
    const std::string group = "[0-9a-fA-F]{1,4}";
    std::string all = text("(", group, ":){7}", group, "|::|:(:", group, "){1,7}");
    for (int before = 1; before < 8; ++before) {
      all += text("|(", group, ":){", std::to_string(before), "}");
      all += before == 7 ? ":" : text("(:|(:", group, "){1,", std::to_string(7 - before), "})");
    }
    return {all, 2, 39};
  }
  if (name == "hostname") return {text("(", label, "\\.){0,2}", last), 1, 191};
  if (name == "email") {
    const std::string atom = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]";
    return {text(atom, "(\\.?", atom, ")", is_short ? "*" : "{0,30}", "@(", label, "\\.){1,2}", last), 5, 253};
  }
  if (name == "uri") {
    const std::string simple = "-a-zA-Z0-9._~!$&'()*+,;=", percent = "|%[0-9a-fA-F]{2})";
    const std::string host = text("([", simple, "]", percent, "+"), p = text("([", simple, ":@]", percent),
                      rest = text("([", simple, ":@/?]", percent, "*");
    return {text("[a-zA-Z][a-zA-Z0-9.+-]*:(//", host, "(:[1-9]\\d{0,3})?(/", p, "*)*|//(/", p, "+)+|/(", p, "+(/", p,
                 "*)*)?|", p, "+(/", p, "*)*)(\\?", rest, ")?(#", rest, ")?"),
            3, -1};
  }
  return {"", 0, 0};
}

}  // namespace espalier::detail
