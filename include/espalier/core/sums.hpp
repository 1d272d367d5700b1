// SPDX-License-Identifier: BSL-1.0
// Tested by tests/core/weights.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "espalier/config.hpp"
#include "espalier/core/wide_number.hpp"

//! Sums over a vocabulary are added up in one fixed order, so that one thread and many threads get the same bits.
//!
//! A row of n terms is cut into parts, at most 256 of them, and each part into blocks of 1024 terms.
//!
//!     block   64 running sums in the terms' own type: term i goes to sum i % 64. The upper half of the sums is added
//!             to the lower (sum l + 32 to sum l, then l + 16, then l + 8), and the 8 left are added up in wide_number
//!     part    its blocks, one after the other, in wide_number
//!     row     32 running sums in wide_number: part i goes to sum i % 32. These are halved to one
//!
//! A draw looks for its token in the same parts, each cut into 32 groups. Every implementation, by one thread or by a
//! warp for each part, follows this order.
namespace espalier::detail {

inline constexpr std::size_t mass_block = 1024;  // terms of a block
// Number of running sums of a block. With fewer, g++ unrolls the loop and does not vectorise it.
inline constexpr std::size_t mass_lanes = 64;
inline constexpr std::size_t most_parts = 256;  // largest number of parts of a row
// Number of running sums of a row's parts, and of a group: as many as a warp has lanes.
inline constexpr std::size_t part_lanes = 32;
inline constexpr std::size_t part_groups = 32;  // groups of a part

// Term i: terms[i] of weights, or terms(i) of a function.
ESPALIER_EXEC_CHECK_DISABLE
template <class TermsT>
ESPALIER_HOST_DEVICE auto term(const TermsT& terms, std::size_t i) {
  if constexpr (requires { terms[i]; }) {
    return terms[i];
  } else {
    return terms(i);
  }
}

// The common number type of all terms that are added up in one pass.
template <class... TermsT>
using term_type = std::common_type_t<decltype(term(std::declval<const TermsT&>(), std::size_t{}))...>;

// Calls use(t) with terms t that equal the given terms from begin to end. Terms with a member within() may offer a form
// that is quicker to read inside one block; otherwise t is the given terms themselves.
template <class TermsT, class UseT>
ESPALIER_HOST_DEVICE auto within(const TermsT& terms, std::size_t begin, std::size_t end, const UseT& use) {
  if constexpr (requires { terms.within(begin, end, use); }) {
    if (end - begin <= mass_block) return terms.within(begin, end, use);
  }
  return use(terms);
}

// Adds the upper half of n running sums to the lower half, again and again, until sum[0] to sum[Last - 1] hold
// everything. n and Last are powers of two.
template <std::size_t Last = 1, class NumberT>
ESPALIER_HOST_DEVICE void halve(NumberT* sum, std::size_t n) {
  for (std::size_t half = n / 2; half >= Last; half /= 2) {
    for (std::size_t l = 0; l < half; ++l)
      sum[l] += sum[l + half];
  }
}

// The results of N sums that are made in one pass.
template <std::size_t N>
struct sums {
  wide_number of[N] = {};

  ESPALIER_HOST_DEVICE sums& operator+=(const sums& other) {
    for (std::size_t k = 0; k < N; ++k)
      of[k] += other.of[k];
    return *this;
  }
};

// One thread that adds up a block: its operator() returns the sum from begin to end - 1 of each series of terms.
struct one_thread {
  template <class... TermsT>
  ESPALIER_HOST_DEVICE sums<sizeof...(TermsT)> operator()(std::size_t begin, std::size_t end,
                                                          const TermsT&... terms) const {
    constexpr std::size_t n = sizeof...(TermsT);
    term_type<TermsT...> sum[n][mass_lanes] = {};
    const auto add = [&](std::size_t l, std::size_t i) {
      std::size_t k = 0;
      ((sum[k++][l] += term(terms, i)), ...);
    };
    std::size_t i = begin;
    for (; i + mass_lanes <= end; i += mass_lanes) {
      for (std::size_t l = 0; l < mass_lanes; ++l)
        add(l, i + l);
    }
    for (std::size_t l = 0; i < end; ++i, ++l)
      add(l, i);
    sums<n> total;
    for (std::size_t k = 0; k < n; ++k) {
      halve<8>(sum[k], mass_lanes);  // halved down to one vector, whose eight numbers are added in wide_number
      const auto last = [&](std::size_t l) { return static_cast<wide_number>(sum[k][l]); };
      total.of[k] = ((last(0) + last(4)) + (last(2) + last(6))) + ((last(1) + last(5)) + (last(3) + last(7)));
    }
    return total;
  }
};

// The sums of a block. `who` adds them up: one thread, or a warp.
template <class WhoT, class... TermsT>
ESPALIER_HOST_DEVICE sums<sizeof...(TermsT)> block_sums(const WhoT& who, std::size_t begin, std::size_t end,
                                                        const TermsT&... terms) {
  if constexpr (sizeof...(TermsT) == 1) {
    return within(terms..., begin, end, [&](const auto& t) { return who(begin, end, t); });
  } else {
    return who(begin, end, terms...);
  }
}

template <class TermsT>
ESPALIER_HOST_DEVICE wide_number block_mass(const TermsT& terms, std::size_t begin, std::size_t end) {
  return block_sums(one_thread(), begin, end, terms).of[0];
}

// The division of 0 .. n - 1 into parts, and of each part into groups.
struct parting {
  std::size_t n;
  std::size_t size;   // terms of a part, whole blocks; the last part may be smaller
  std::size_t count;  // number of parts

  ESPALIER_HOST_DEVICE explicit parting(std::size_t terms)
      : n(terms), size((n / mass_block / most_parts + 1) * mass_block), count((n + size - 1) / size) {}
  ESPALIER_HOST_DEVICE std::size_t begin(std::size_t part) const { return part * size; }
  ESPALIER_HOST_DEVICE std::size_t end(std::size_t part) const { return part + 1 < count ? (part + 1) * size : n; }
  ESPALIER_HOST_DEVICE std::size_t begin(std::size_t part, std::size_t group) const {
    const std::size_t i = begin(part) + group * (size / part_groups);
    return i < end(part) ? i : end(part);
  }
};

// The sums of a part, added up block after block.
template <class WhoT, class... TermsT>
ESPALIER_HOST_DEVICE sums<sizeof...(TermsT)> part_sums(const WhoT& who, const parting& cut, std::size_t part,
                                                       const TermsT&... terms) {
  sums<sizeof...(TermsT)> total;
  const std::size_t end = cut.end(part);
  for (std::size_t i = cut.begin(part); i < end; i += mass_block)
    total += block_sums(who, i, end - i < mass_block ? end : i + mass_block, terms...);
  return total;
}

// The sum of the terms from begin to end, one group of a part.
template <class TermsT>
ESPALIER_HOST_DEVICE wide_number group_mass(const TermsT& terms, std::size_t begin, std::size_t end) {
  return within(terms, begin, end, [&](const auto& t) {
    wide_number sum[part_lanes] = {};
    std::size_t i = begin;
    for (; i + part_lanes <= end; i += part_lanes) {
      term_type<TermsT> these[part_lanes];
      for (std::size_t l = 0; l < part_lanes; ++l)
        these[l] = term(t, i + l);
      for (std::size_t l = 0; l < part_lanes; ++l)
        sum[l] += static_cast<wide_number>(these[l]);
    }
    for (std::size_t l = 0; i < end; ++i, ++l)
      sum[l] += static_cast<wide_number>(term(t, i));
    halve(sum, part_lanes);
    return sum[0];
  });
}

// The position at which a number r falls when the weights are laid end to end.
struct landing {
  std::int32_t at = -1;    // index of the weight that r falls on; -1 if all weights are zero
  wide_number before = 0;  // the sum of the weights before it
};

// The team of one thread: it does everything itself. A team of many threads has the same members; its threads share the
// work, and each of them gets the same result.
struct alone {
  // The number of this thread, and the number of threads in the team.
  ESPALIER_HOST_DEVICE static constexpr std::size_t rank() { return 0; }
  ESPALIER_HOST_DEVICE static constexpr std::size_t size() { return 1; }

  // Waits for all threads: each sees what the others wrote before.
  ESPALIER_HOST_DEVICE static constexpr void sync() {}

  // Calls f(i) for 0 <= i < n. In a team of many threads, thread r calls it for r, r + size(), ..
  template <class FunctionT>
  ESPALIER_HOST_DEVICE void each(std::size_t n, const FunctionT& f) const {
    std::size_t i = 0;
    for (; i + mass_lanes <= n; i += mass_lanes) {
      for (std::size_t l = 0; l < mass_lanes; ++l)
        f(i + l);
    }
    for (; i < n; ++i)
      f(i);
  }

  // Returns the values of all threads, combined in any order.
  template <class ValueT, class CombineT>
  ESPALIER_HOST_DEVICE ValueT reduce(ValueT value, const CombineT&) const {
    return value;
  }

  // Adds x to a sum that all threads share. The numbers are whole, so that the order does not matter.
  ESPALIER_HOST_DEVICE void add(unsigned long long& sum, unsigned long long x) const { sum += x; }

  // Returns, for each of the given series, the sum of its terms 0 .. n - 1.
  template <class... TermsT>
  ESPALIER_HOST_DEVICE sums<sizeof...(TermsT)> sums_of(std::size_t n, const TermsT&... terms) const {
    const parting cut(n);
    sums<sizeof...(TermsT)> sum[part_lanes];
    for (std::size_t part = 0; part < cut.count; ++part)
      sum[part % part_lanes] += part_sums(one_thread(), cut, part, terms...);
    if (cut.count > 1) halve(sum, part_lanes);  // adding the zeros of the other sums would change nothing
    return sum[0];
  }

  // The sum of each part of a row, and the sum of all parts.
  struct parts {
    wide_number of[most_parts];
    wide_number total;
  };
  template <class TermsT>
  ESPALIER_HOST_DEVICE parts parts_of(const parting& cut, const TermsT& terms) const {
    parts found;
    wide_number sum[part_lanes] = {};
    for (std::size_t part = 0; part < cut.count; ++part)
      sum[part % part_lanes] += found.of[part] = part_sums(one_thread(), cut, part, terms).of[0];
    if (cut.count > 1) halve(sum, part_lanes);
    found.total = sum[0];
    return found;
  }

  // The sum of each group of one part.
  struct groups {
    wide_number of[part_groups];
  };
  template <class TermsT>
  ESPALIER_HOST_DEVICE groups groups_of(const parting& cut, std::size_t part, const TermsT& terms) const {
    groups found;
    for (std::size_t group = 0; group < part_groups; ++group) {
      const std::size_t begin = cut.begin(part, group), end = cut.begin(part, group + 1);
      found.of[group] = begin < end ? group_mass(terms, begin, end) : 0;
    }
    return found;
  }

  // The first i of begin .. end - 1 with before + weights[begin] + .. + weights[i] > r. If rounding leaves none, the
  // last i with a weight above 0.
  template <class WeightsT>
  ESPALIER_HOST_DEVICE landing land(wide_number r, wide_number before, const WeightsT& weights, std::size_t begin,
                                    std::size_t end) const {
    landing found;
    for (std::size_t i = begin; i < end; ++i) {
      const auto weight = static_cast<wide_number>(term(weights, i));
      if (!(weight > 0)) continue;
      found = {static_cast<std::int32_t>(i), before};
      before += weight;
      if (r < before) break;
    }
    return found;
  }

  // Calls f once for the whole team, and returns its result to every thread.
  template <class FunctionT>
  ESPALIER_HOST_DEVICE auto once(const FunctionT& f) const {
    return f();
  }
};

}  // namespace espalier::detail
