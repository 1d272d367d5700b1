// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "espalier/constraint/automaton/byte_nfa.hpp"

namespace espalier::detail {

// Makes the part of an automaton that accepts the integers from `low` to `high`, without leading zeros.
class integer_range {
 public:
  static constexpr std::int64_t most = 999'999'999'999'999;

  // Prepares the part.
  //
  // Pre         -most <= low <= high <= most
  integer_range(byte_nfa& nfa, std::int64_t low, std::int64_t high) : nfa_(nfa), low_(low), high_(high) {}

  nfa_part part() {
    std::optional<nfa_part> all;
    if (low_ < 0) {
      const nfa_part minus = nfa_.byte('-', '-');
      all = nfa_.then(minus, natural((std::max)(std::int64_t{1}, -high_), -low_));
    }
    if (high_ < 0) return *all;
    const nfa_part rest = natural((std::max)(std::int64_t{0}, low_), high_);
    return all ? nfa_.either(*all, rest) : rest;
  }

 private:
  nfa_part natural(std::int64_t low, std::int64_t high) {
    std::optional<nfa_part> all;
    std::int64_t first = 0, last = 9;  // smallest and largest number of equally many digits
    for (; first <= high; first = last + 1, last = last * 10 + 9) {
      if (last < low) continue;
      const nfa_part one = between(std::to_string((std::max)(first, low)), std::to_string((std::min)(last, high)));
      all = all ? nfa_.either(*all, one) : one;
    }
    return *all;
  }

  // The digits from `low` to `high`, which have equally many digits.
  nfa_part between(std::string_view low, std::string_view high) {
    if (low.empty()) return nfa_.nothing();
    const bool is_free = std::all_of(low.begin(), low.end(), [](char c) { return c == '0'; }) &&
                         std::all_of(high.begin(), high.end(), [](char c) { return c == '9'; });
    if (is_free || low[0] == high[0]) return digit(low[0], high[0], low.substr(1), high.substr(1));
    const std::string zeros(low.size() - 1, '0'), nines(low.size() - 1, '9');
    nfa_part all = digit(low[0], low[0], low.substr(1), nines);
    if (low[0] + 1 < high[0])
      all = nfa_.either(all, digit(static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1), zeros, nines));
    return nfa_.either(all, digit(high[0], high[0], zeros, high.substr(1)));
  }

  nfa_part digit(char from, char to, std::string_view low, std::string_view high) {
    const nfa_part first = nfa_.byte(static_cast<std::uint8_t>(from), static_cast<std::uint8_t>(to));
    return nfa_.then(first, between(low, high));
  }

  byte_nfa& nfa_;
  std::int64_t low_, high_;
};

}  // namespace espalier::detail
