// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

#include "espalier/core/sums.hpp"
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
// A sample tells where the last of them should lie, and how far that may be wrong. One pass adds up what is above each of
// three such values at once, and where that leaves too many in between, another does so closer by. What is left then is
// copied, and bisected by value. Sums of parts of a row round in other ways than those of the whole, which decide: a last
// pass sees whether the search has met these. A sample that misleads costs passes, never the result, which another search
// would find to the same bits.
//
// Shapes      weights [n], from 0 to 1
// Complexity  mostly four passes, one of which copies; never more than five and one for each bit of a number
// Source      Floyd and Rivest 1975, SELECT, with masses for ranks
template <class NumberT>
class nucleus {
 public:
  // Makes room, so that find() does not allocate.
  void reserve() { copied_.resize(room); }

  // Pre         total: the sum of the weights; 0 < mass < total
  row_cut<NumberT> find(std::span<const NumberT> weights, double mass, double total) {
    reserve();
    mass_ = mass;
    low_ = 1;
    high_ = bits_of(NumberT{1}) + 1;
    above_ = 0;
    from_low_ = total;
    std::span<const NumberT> left = weights;
    double dropped = 0;  // mass that is not in `left`
    if (weights.size() > room) {
      probe(weights, guess_by_sample(weights));
      for (int i = 0; i < 2 && !is_few() && high_ - low_ > 1; ++i)
        probe(weights, guess_between());
      const std::size_t n = is_few() ? copy(weights) : room;
      if (n < room) {
        left = std::span<const NumberT>(copied_).first(n);
        dropped = above_;
      }
    }
    while (high_ - low_ > 1) {
      const bits_type middle = low_ + (high_ - low_) / 2;
      update(middle, dropped + mass_from(left, value_of(middle)));
    }
    if (weights.size() > room) settle(weights);
    const auto least = static_cast<double>(value_of(low_));
    const double equal = std::round((from_low_ - above_) / least);
    const double ties = (std::min)(std::ceil((mass_ - above_) / least), equal);
    // Where rounding has left too little of a row to reach the mass, all is kept.
    if (low_ == 1) return {value_of(low_), row_cut<NumberT>::all_ties, from_low_};
    return {value_of(low_), static_cast<std::size_t>(ties), above_ + ties * least};
  }

 private:
  using bits_type = std::conditional_t<sizeof(NumberT) == 4, std::uint32_t, std::uint64_t>;
  using guesses = std::array<bits_type, 3>;  // ascending, from low_ to high_
  static constexpr std::size_t few = 1024;
  static constexpr std::size_t room = 2 * few;

  // The order of numbers that are not negative is that of their bits.
  static bits_type bits_of(NumberT x) { return std::bit_cast<bits_type>(x); }
  static NumberT value_of(bits_type x) { return std::bit_cast<NumberT>(x); }

  // The last x before `high` at which this holds. Pre: it holds at low, and where it does not, it does nowhere above.
  template <class PredicateT>
  static bits_type last_where(bits_type low, bits_type high, const PredicateT& holds) {
    while (high - low > 1) {
      const bits_type middle = low + (high - low) / 2;
      (holds(middle) ? low : high) = middle;
    }
    return low;
  }

  // The last weight that is kept lies from low_ up to before high_.
  void update(bits_type at, double from_there) {
    const bool reaches = from_there >= mass_;
    (reaches ? low_ : high_) = at;
    (reaches ? from_low_ : above_) = from_there;
  }

  // No more than these can lie from low_ up to before high_: none of them is smaller.
  bool is_few() const { return from_low_ - above_ <= static_cast<double>(few) * static_cast<double>(value_of(low_)); }

  guesses guess_by_sample(std::span<const NumberT> weights) const {
    const std::size_t stride = weights.size() / few;
    const std::size_t n = (std::min)(few, weights.size() / stride);
    NumberT taken[few];
    for (std::size_t i = 0; i < n; ++i)
      taken[i] = weights[i * stride];
    const std::span<const NumberT> sample(taken, n);
    bits_type largest = 1;
    for (const NumberT weight : sample)
      largest = (std::max)(largest, bits_of(weight));
    const auto count_below = [&](bits_type x) {
      std::uint32_t count = 0;
      for (const NumberT weight : sample)
        count += bits_of(weight) < x ? 1U : 0U;
      return count;
    };
    // What is cut off, in units of what a sample stands for.
    const double rest = (std::max)(0.0, from_low_ - mass_) / static_cast<double>(stride);
    const bits_type guess = last_where(low_, largest + 1, [&](bits_type x) {
      const NumberT end = value_of(x);
      return block_mass([&](std::size_t i) { return sample[i] < end ? sample[i] : NumberT{0}; }, 0, n) <= rest;
    });
    // No sample that is cut off is larger than the cut: the error of their sum, in samples, is about the root of it.
    const double error = 4 + 3 * std::sqrt(rest / static_cast<double>(value_of(guess)));
    const auto margin = static_cast<std::uint32_t>((std::min)(error, static_cast<double>(n)));
    const std::uint32_t rank = count_below(guess);
    const bits_type low = last_where(low_, guess + 1, [&](bits_type x) { return count_below(x) + margin <= rank; });
    const bits_type high = last_where(guess, high_, [&](bits_type x) { return count_below(x) < rank + margin; }) + 1;
    // Where no sample is so large, halfway up to 1 on a logarithmic scale.
    return {low, guess, high > largest + 1 ? largest + (high_ - largest) / 2 : high};
  }

  // Near where the cut would be if the mass in between were spread evenly.
  guesses guess_between() const {
    const bits_type width = high_ - low_;
    const double part = (from_low_ - mass_) / (from_low_ - above_);
    const bits_type guess = low_ + (std::min)(width, static_cast<bits_type>(part * static_cast<double>(width)));
    const bits_type step = width / 32 + 1;
    return {guess - (std::min)(step, guess - low_), guess, guess + (std::min)(step, high_ - guess)};
  }

  void probe(std::span<const NumberT> weights, const guesses& at) {
    const NumberT a = value_of(at[0]), b = value_of(at[1]), c = value_of(at[2]);
    double totals[3][mass_lanes] = {};
    for (std::size_t i = 0; i < weights.size();) {
      NumberT sums[3][mass_lanes] = {};
      const auto add = [&](std::size_t l, NumberT weight) {
        sums[0][l] += weight < a ? NumberT{0} : weight;
        sums[1][l] += weight < b ? NumberT{0} : weight;
        sums[2][l] += weight < c ? NumberT{0} : weight;
      };
      const std::size_t end = (std::min)(weights.size(), i + mass_block);
      for (; i + mass_lanes <= end; i += mass_lanes) {
        for (std::size_t l = 0; l < mass_lanes; ++l)
          add(l, weights[i + l]);
      }
      for (std::size_t l = 0; i < end; ++i, ++l)
        add(l, weights[i]);
      for (std::size_t g = 0; g < 3; ++g) {
        for (std::size_t l = 0; l < mass_lanes; ++l)
          totals[g][l] += static_cast<double>(sums[g][l]);
      }
    }
    for (std::size_t g = 0; g < 3 && low_ <= at[g] && at[g] <= high_; ++g)
      update(at[g], std::accumulate(std::begin(totals[g]), std::end(totals[g]), 0.0));
  }

  // The sum of the weights from value_of(at) on, and of those above it.
  static sums<2> masses_at(std::span<const NumberT> weights, bits_type at) {
    const NumberT least = value_of(at);
    return alone().sums_of(
        weights.size(), [=](std::size_t i) { return weights[i] < least ? NumberT{0} : weights[i]; },
        [=](std::size_t i) { return weights[i] > least ? weights[i] : NumberT{0}; });
  }

  // low_ becomes the last weight from which on the sum over the row reaches the mass. Such sums fall as the weight rises.
  void settle(std::span<const NumberT> weights) {
    sums<2> found = masses_at(weights, low_);
    if (!(found.of[0] >= mass_ && found.of[1] < mass_)) {
      low_ =
          last_where(1, bits_of(NumberT{1}) + 1, [&](bits_type at) { return masses_at(weights, at).of[0] >= mass_; });
      found = masses_at(weights, low_);
    }
    from_low_ = found.of[0];
    above_ = found.of[1];
  }

  // Copies what lies from low_ up to before high_. How many there are, or `room` where there is none for them.
  std::size_t copy(std::span<const NumberT> weights) {
    const NumberT* from = weights.data();
    const bits_type low = low_, width = high_ - low_;
    std::size_t n = 0;
    for_each_where(
        0, weights.size(), [=](std::size_t i) { return bits_of(from[i]) - low < width; },
        [&](std::size_t i) {
          copied_[n] = from[i];
          n += n + 1 < room ? 1U : 0U;
        });
    return n + 1 < room ? n : room;
  }

  std::vector<NumberT> copied_;
  double mass_ = 0;
  bits_type low_ = 0;
  bits_type high_ = 0;
  double above_ = 0;     // mass from high_ upwards, below mass_
  double from_low_ = 0;  // mass from low_ upwards, at least mass_
};

}  // namespace espalier::detail
