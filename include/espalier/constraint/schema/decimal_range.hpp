// SPDX-License-Identifier: BSL-1.0
// Tested by tests/constraint/schema/json_schema.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "espalier/constraint/automaton/byte_nfa.hpp"

namespace espalier::detail {

// A bound of numbers: digits * 10^exponent, which itself may be excluded.
struct decimal_bound {
  std::int64_t digits = 0;
  int exponent = 0;
  bool is_excluded = false;
};

// Makes the part of an automaton that accepts the numbers between bounds, without leading zeros: whole ones, or
// decimals without an exponent. They have at most 15 digits, before and after the point together, so that no two of
// them are the same number of 64 bits: what is above a bound here is above it wherever it is read.
class decimal_range {
 public:
  static constexpr int most_digits = 15;
  static constexpr std::size_t most_rests = 6000;

  std::vector<decimal_bound> lows, highs;
  bool is_whole = true;
  std::int64_t multiple = 1;  // of which whole numbers are multiples, at most 10^6

  explicit decimal_range(byte_nfa& nfa) : nfa_(nfa) {}

  // Adds the part to the automaton; no part if there is no such number, or if the automaton would be too large. To be
  // called once.
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
  // limit or -limit for one beyond it.
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
    // One that is not exact was cut toward zero.
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
    // Once the digits are beyond both bounds, whole numbers of any length are treated alike.
    if (!is_too_large()) {
      for (auto r = rests_.begin(); r != rests_.end();)
        r = is_whole && !std::get<1>(r->first) && !std::get<2>(r->first) ? std::next(r) : rests_.erase(r);
    }
    return rest(0, true, true, 0);
  }

  // The state from which the digits from place `at` on are read, after digits that equal those of `low`, or of `high`,
  // or lie between; `sum` is the remainder of what they stand for.
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
    char begin = first;  // of the digits that lead to `to`
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
  int n_before_ = 0, n_after_ = 0;  // digits before the point, and at most after it
  std::string low_, high_;          // of all digits, without the point
  std::map<std::tuple<int, bool, bool, std::int64_t>, std::int32_t> rests_;
};

}  // namespace espalier::detail
