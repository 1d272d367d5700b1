// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "espalier/config.hpp"

//! How the terms of long sums are added up: to the same bits by one thread and by many.
namespace espalier::detail {

// Terms are added as they are, in running sums, which are then halved into one double a block. Blocks make at most so many
// parts, whose doubles are added in running sums again. Of the former there are more than compilers unroll, for what is unrolled
// is not vectorised; the latter are the lanes of a warp.
inline constexpr std::size_t mass_block = 1024;
inline constexpr std::size_t mass_lanes = 64;
inline constexpr std::size_t most_parts = 256;
inline constexpr std::size_t part_lanes = 32;
inline constexpr std::size_t part_groups = 32;

// A term: of weights, or of a function.
ESPALIER_EXEC_CHECK_DISABLE
template <class TermsT>
ESPALIER_HOST_DEVICE auto term(const TermsT& terms, std::size_t i) {
  if constexpr (requires { terms[i]; }) {
    return terms[i];
  } else {
    return terms(i);
  }
}

// Terms that are added up together are of one type.
template <class... TermsT>
using term_type = std::common_type_t<decltype(term(std::declval<const TermsT&>(), std::size_t{}))...>;

// use(t), where t has the same terms from begin to end, and is quicker there where the terms know of such.
template <class TermsT, class UseT>
ESPALIER_HOST_DEVICE auto within(const TermsT& terms, std::size_t begin, std::size_t end, const UseT& use) {
  if constexpr (requires { terms.within(begin, end, use); }) {
    if (end - begin <= mass_block) return terms.within(begin, end, use);
  }
  return use(terms);
}

// The sum of all in sum[0], or of halves of halves in the first Last.
template <std::size_t Last = 1, class NumberT>
ESPALIER_HOST_DEVICE void halve(NumberT* sum, std::size_t n) {
  for (std::size_t half = n / 2; half >= Last; half /= 2) {
    for (std::size_t l = 0; l < half; ++l)
      sum[l] += sum[l + half];
  }
}

// Several sums that are made in one pass.
template <std::size_t N>
struct sums {
  double of[N] = {};

  ESPALIER_HOST_DEVICE sums& operator+=(const sums& other) {
    for (std::size_t k = 0; k < N; ++k)
      of[k] += other.of[k];
    return *this;
  }
};

// Adds up a block by itself.
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
      halve<8>(sum[k], mass_lanes);  // that fills vectors
      const auto last = [&](std::size_t l) { return static_cast<double>(sum[k][l]); };
      total.of[k] = ((last(0) + last(4)) + (last(2) + last(6))) + ((last(1) + last(5)) + (last(3) + last(7)));
    }
    return total;
  }
};

// Of a block. `who` adds up: one thread or a warp.
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
ESPALIER_HOST_DEVICE double block_mass(const TermsT& terms, std::size_t begin, std::size_t end) {
  return block_sums(one_thread(), begin, end, terms).of[0];
}

// How 0 .. n - 1 is parted, and parts grouped.
struct parting {
  std::size_t n;
  std::size_t size;   // of a part, whole blocks; the last may be smaller
  std::size_t count;  // of parts

  ESPALIER_HOST_DEVICE explicit parting(std::size_t terms)
      : n(terms), size((n / mass_block / most_parts + 1) * mass_block), count((n + size - 1) / size) {}
  ESPALIER_HOST_DEVICE std::size_t begin(std::size_t part) const { return part * size; }
  ESPALIER_HOST_DEVICE std::size_t end(std::size_t part) const { return part + 1 < count ? (part + 1) * size : n; }
  ESPALIER_HOST_DEVICE std::size_t begin(std::size_t part, std::size_t group) const {
    const std::size_t i = begin(part) + group * (size / part_groups);
    return i < end(part) ? i : end(part);
  }
};

// Block after block.
template <class WhoT, class... TermsT>
ESPALIER_HOST_DEVICE sums<sizeof...(TermsT)> part_sums(const WhoT& who, const parting& cut, std::size_t part,
                                                       const TermsT&... terms) {
  sums<sizeof...(TermsT)> total;
  const std::size_t end = cut.end(part);
  for (std::size_t i = cut.begin(part); i < end; i += mass_block)
    total += block_sums(who, i, end - i < mass_block ? end : i + mass_block, terms...);
  return total;
}

// The sum of a group, in which a token is looked for.
template <class TermsT>
ESPALIER_HOST_DEVICE double group_mass(const TermsT& terms, std::size_t begin, std::size_t end) {
  return within(terms, begin, end, [&](const auto& t) {
    double sum[part_lanes] = {};
    std::size_t i = begin;
    for (; i + part_lanes <= end; i += part_lanes) {
      term_type<TermsT> these[part_lanes];
      for (std::size_t l = 0; l < part_lanes; ++l)
        these[l] = term(t, i + l);
      for (std::size_t l = 0; l < part_lanes; ++l)
        sum[l] += static_cast<double>(these[l]);
    }
    for (std::size_t l = 0; i < end; ++i, ++l)
      sum[l] += static_cast<double>(term(t, i));
    halve(sum, part_lanes);
    return sum[0];
  });
}

// One thread that does all by itself. Teams of many do the same together, and give the same to each of their threads.
struct alone {
  // The sums of terms 0 .. n - 1.
  template <class... TermsT>
  ESPALIER_HOST_DEVICE sums<sizeof...(TermsT)> sums_of(std::size_t n, const TermsT&... terms) const {
    const parting cut(n);
    sums<sizeof...(TermsT)> sum[part_lanes];
    for (std::size_t part = 0; part < cut.count; ++part)
      sum[part % part_lanes] += part_sums(one_thread(), cut, part, terms...);
    halve(sum, part_lanes);
    return sum[0];
  }

  // The sum of each part, and of all.
  struct parts {
    double of[most_parts];
    double total;
  };
  template <class TermsT>
  ESPALIER_HOST_DEVICE parts parts_of(const parting& cut, const TermsT& terms) const {
    parts found;
    double sum[part_lanes] = {};
    for (std::size_t part = 0; part < cut.count; ++part)
      sum[part % part_lanes] += found.of[part] = part_sums(one_thread(), cut, part, terms).of[0];
    halve(sum, part_lanes);
    found.total = sum[0];
    return found;
  }

  // The sums of the groups of a part.
  struct groups {
    double of[part_groups];
  };
  template <class TermsT>
  ESPALIER_HOST_DEVICE groups groups_of(const parting& cut, std::size_t part, const TermsT& terms) const {
    groups found;
    for (std::size_t group = 0; group < part_groups; ++group)
      found.of[group] = group_mass(terms, cut.begin(part, group), cut.begin(part, group + 1));
    return found;
  }

  // What one thread finds out for all.
  template <class FunctionT>
  ESPALIER_HOST_DEVICE auto once(const FunctionT& f) const {
    return f();
  }
};

}  // namespace espalier::detail
