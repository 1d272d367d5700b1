// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "espalier/core/weights.hpp"

namespace espalier::detail {

// Calls f(i), in order, for each i from `begin` to before `end` at which holds(i); quick where that is seldom.
template <class PredicateT, class FunctionT>
void for_each_where(std::size_t begin, std::size_t end, const PredicateT& holds, const FunctionT& f) {
  constexpr std::size_t bytes = sizeof(std::uint64_t);
  constexpr bool little = std::endian::native == std::endian::little;
  for (; begin + mass_lanes <= end; begin += mass_lanes) {
    std::uint8_t held[mass_lanes];
    for (std::size_t l = 0; l < mass_lanes; ++l)
      held[l] = holds(begin + l) ? 1 : 0;
    std::uint64_t words[mass_lanes / bytes];
    std::memcpy(words, held, sizeof words);
    std::uint64_t any = 0;
    for (const std::uint64_t word : words)
      any |= word;
    if (any == 0) continue;
    for (std::size_t w = 0; w < mass_lanes / bytes; ++w) {
      for (std::uint64_t word = words[w]; word != 0; word ^= little ? word & (0 - word) : std::bit_floor(word))
        f(begin + w * bytes + static_cast<std::size_t>(little ? std::countr_zero(word) : std::countl_zero(word)) / 8);
    }
  }
  for (; begin < end; ++begin) {
    if (holds(begin)) f(begin);
  }
}

// Where a row ends, largest weight first and ties by lower index: it keeps what is above `least`, and the first `ties` of
// the weights equal to it.
template <class NumberT>
struct row_cut {
  NumberT least;
  std::size_t ties;
  double mass;  // of what is kept

  static constexpr std::size_t all_ties = (std::numeric_limits<std::size_t>::max)();
};

template <class NumberT>
double mass_from(std::span<const NumberT> weights, NumberT least) {
  return sum_of(weights.size(), [&](std::size_t i) { return weights[i] < least ? NumberT{0} : weights[i]; });
}

// Zeroes what is cut off and divides the rest by its mass. One pass.
template <class NumberT>
void keep(std::span<NumberT> row, row_cut<NumberT> cut) {
  const auto inverse = static_cast<NumberT>(1.0 / cut.mass);
  const auto keep_part = [&](NumberT* p, std::size_t n) {
    std::uint32_t equal = 0;
    for (std::size_t i = 0; i < n; ++i)
      equal += p[i] == cut.least ? 1U : 0U;
    // Beyond the last tie that is kept.
    for (std::size_t i = n; equal > cut.ties; --equal) {
      while (p[--i] != cut.least) {
      }
      p[i] = 0;
    }
    cut.ties -= equal;
    for (std::size_t i = 0; i < n; ++i)
      p[i] = p[i] < cut.least ? NumberT{0} : p[i] * inverse;
  };
  std::size_t i = 0;
  for (; i + mass_lanes <= row.size(); i += mass_lanes)
    keep_part(row.data() + i, mass_lanes);
  keep_part(row.data() + i, row.size() - i);
}

// Finds the fewest weights, largest first and ties by lower index, that reach a mass: without a sort of the row.
//
// A sorted sample tells between which two weights the last one should lie. One pass adds up what is above and copies
// what is between; where the sample was wrong, so is one of the sums, and the search goes on beside. The few that are left
// are bisected by value.
//
// Shapes      weights [n], from 0 to 1
// Complexity  mostly one pass, and O(n / 100); never more than three passes and one for each bit of a number
// Source      Floyd and Rivest 1975, SELECT, with masses for ranks
template <class NumberT>
class nucleus {
 public:
  // Makes room for rows of this length.
  void reserve(std::size_t n) {
    if (copied_.size() < n) copied_.resize(n);
  }

  // Pre         total: the sum of the weights; 0 < mass < total
  row_cut<NumberT> find(std::span<const NumberT> weights, double mass, double total) {
    reserve(weights.size());
    left_ = weights;
    mass_ = mass;
    // The last weight lies from low_ up to before high_: here are all that are positive.
    low_ = 1;
    high_ = bits_of(NumberT{1}) + 1;
    used_ = 0;
    dropped_ = 0;
    above_ = 0;
    from_low_ = total;
    for (int i = 0; i < 3 && left_.size() > few && left_.size() <= copied_.size() - used_ && high_ - low_ > 1; ++i)
      narrow();
    while (high_ - low_ > 1) {
      const bits_type middle = low_ + (high_ - low_) / 2;
      const double from_middle = dropped_ + mass_from(left_, value_of(middle));
      (from_middle < mass_ ? high_ : low_) = middle;
      (from_middle < mass_ ? above_ : from_low_) = from_middle;
    }
    const auto least = static_cast<double>(value_of(low_));
    const double equal = std::round((from_low_ - above_) / least);
    const double ties = (std::min)(std::ceil((mass_ - above_) / least), equal);
    // Where rounding has left too little of a row to reach the mass, all is kept.
    if (low_ == 1) return {value_of(low_), row_cut<NumberT>::all_ties, from_low_};
    return {value_of(low_), static_cast<std::size_t>(ties), above_ + ties * least};
  }

 private:
  using bits_type = std::conditional_t<sizeof(NumberT) == 4, std::uint32_t, std::uint64_t>;
  static constexpr std::size_t few = 2048;
  static constexpr std::size_t samples = 1024;

  // The order of numbers that are not negative is that of their bits.
  static bits_type bits_of(NumberT x) { return std::bit_cast<bits_type>(x); }
  static NumberT value_of(bits_type x) { return std::bit_cast<NumberT>(x); }

  void narrow() {
    NumberT sample[samples];
    const std::size_t stride = left_.size() / samples;
    std::size_t n = 0;
    for (std::size_t i = 0; i < samples; ++i) {
      const NumberT weight = left_[i * stride];
      if (bits_of(weight) >= low_ && bits_of(weight) < high_) sample[n++] = weight;
    }
    if (n == 0) return;
    std::sort(sample, sample + n);
    // What may be cut off, in units of what a sample stands for.
    const double rest = (from_low_ - mass_) / static_cast<double>(stride);
    double sum = 0;
    std::size_t last = 0;
    while (last + 1 < n && (sum += static_cast<double>(sample[last])) <= rest)
      ++last;
    // Each sample below the cut is no larger than the cut: the error of their sum, in samples, is about the root of it.
    const double error = 4 + 3 * std::sqrt((std::max)(0.0, rest) / static_cast<double>(sample[last]));
    const std::size_t margin = error < static_cast<double>(n) ? static_cast<std::size_t>(error) : n;
    const bits_type low = margin <= last ? bits_of(sample[last - margin]) : low_;
    const bits_type high = last + margin < n ? bits_of(sample[last + margin]) + 1 : high_;
    const auto [from_high, between, n_copied] = split(low, high);
    if (from_high >= mass_) {
      low_ = high;
      from_low_ = from_high;
    } else if (from_high + between < mass_) {
      high_ = low;
      above_ = from_high + between;
    } else {
      low_ = low;
      high_ = high;
      above_ = dropped_ = from_high;
      from_low_ = from_high + between;
      left_ = std::span<const NumberT>(copied_).subspan(used_, n_copied);
      used_ += n_copied;
    }
  }

  struct parts {
    double from_high;
    double between;
    std::size_t n_copied;
  };

  // Adds up what is left from high upwards, and copies what lies from low up to before high.
  parts split(bits_type low, bits_type high) {
    const NumberT* from = left_.data();
    NumberT* to = copied_.data() + used_;
    const NumberT most = value_of(high);
    parts result{high == high_ ? above_ : dropped_, 0, 0};
    std::size_t n = 0;
    for (std::size_t i = 0; i < left_.size(); i += mass_block) {
      const std::size_t end = (std::min)(left_.size(), i + mass_block);
      for_each_where(
          i, end, [=](std::size_t j) { return bits_of(from[j]) - low < high - low; },
          [&](std::size_t j) { to[n++] = from[j]; });
      if (high == high_) continue;
      result.from_high += block_mass([=](std::size_t j) { return from[j] < most ? NumberT{0} : from[j]; }, i, end);
    }
    result.n_copied = n;
    result.between = detail::mass(std::span<const NumberT>(to, n));
    return result;
  }

  std::span<const NumberT> left_;
  std::vector<NumberT> copied_;
  std::size_t used_ = 0;  // of copied_
  double mass_ = 0;
  bits_type low_ = 0;
  bits_type high_ = 0;
  double dropped_ = 0;   // mass that is no longer in left_
  double above_ = 0;     // mass from high_ upwards, below mass_
  double from_low_ = 0;  // mass from low_ upwards, at least mass_
};

}  // namespace espalier::detail
