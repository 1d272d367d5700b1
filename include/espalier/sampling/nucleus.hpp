// SPDX-License-Identifier: BSL-1.0
// Tested by tests/sampling/sampler.cpp
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <type_traits>

#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/sums.hpp"
#include "espalier/core/weights.hpp"
#include "espalier/core/wide_number.hpp"

namespace espalier::detail {

// Calls f(i), in order, for each i of begin .. end - 1 for which holds(i) is true. It tests 64 of them at once, which
// is quick if holds(i) is seldom true.
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

// The weights of a row that are kept: all above `least`, and of those equal to `least` the first `ties` by index.
template <class NumberT>
struct row_cut {
  NumberT least;
  std::size_t ties;
  wide_number mass;  // sum of the kept weights

  static constexpr std::size_t all_ties = (std::numeric_limits<std::size_t>::max)();
};

// The sum of the weights that are at least `least`.
template <class NumberT>
wide_number mass_from(std::span<const NumberT> weights, NumberT least) {
  return sum_of(weights.size(), [&](std::size_t i) { return weights[i] < least ? NumberT{0} : weights[i]; });
}

// Applies a cut in one pass: weights that are not kept become 0, and the others are divided by cut.mass.
template <class NumberT>
void keep(std::span<NumberT> row, row_cut<NumberT> cut) {
  const auto inverse = static_cast<NumberT>(1 / cut.mass);
  const auto keep_part = [&](NumberT* p, std::size_t n) {
    std::uint32_t equal = 0;
    for (std::size_t i = 0; i < n; ++i)
      equal += p[i] == cut.least ? 1U : 0U;
    // More ties than may be kept: the last ones are set to 0.
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

// The search of top-p for the cut that keeps the fewest weights, largest first and ties by lower index, whose sum
// reaches a given mass. The row is not sorted.
//
// The smallest weight that is kept lies in an interval [low, high), which is narrowed down:
//   1. A sample of the row gives a guess of it, and a margin on either side.
//   2. One pass sums up the weights at or above each of these three values. If too many weights are left in between,
//      one or two more passes do the same with three values closer together.
//   3. The weights in between are copied, and the copy is bisected by value.
//   4. A last pass checks the cut with sums over the whole row. Only these decide: sums over the copy are rounded
//      differently.
// So a misleading sample costs passes, but any search ends at the same cut, to the last bit.
//
// Shapes      weights [n], from 0 to 1
// Complexity  usually up to four passes over the row, one of them copying; at most 6 + 2 * (bits of NumberT). A row of
//             up to 2048 weights is bisected without a sample or a copy
// Source      Floyd and Rivest 1975, SELECT, with masses in place of ranks
template <class NumberT>
class nucleus {
 public:
  // Takes the memory that find() needs; find() allocates none after it.
  void reserve() { copied_.resize(room); }
  static constexpr std::size_t bytes() { return arena::bytes_of<NumberT>(room); }

  // Returns the cut for weights whose sum is `total`.
  //
  // Pre         0 < mass < total
  row_cut<NumberT> find(std::span<const NumberT> weights, wide_number mass, wide_number total) {
    reserve();
    mass_ = mass;
    low_ = 1;
    high_ = bits_of(NumberT{1}) + 1;
    above_ = 0;
    from_low_ = total;
    std::span<const NumberT> left = weights;
    wide_number dropped = 0;  // mass of the weights above all those in `left`
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
    const auto least = static_cast<wide_number>(value_of(low_));
    const wide_number equal = std::round((from_low_ - above_) / least);
    const wide_number ties = (std::min)(std::ceil((mass_ - above_) / least), equal);
    // If rounding makes every sum of the row fall short of the mass, the whole row is kept.
    if (low_ == 1) return {value_of(low_), row_cut<NumberT>::all_ties, from_low_};
    return {value_of(low_), static_cast<std::size_t>(ties), above_ + ties * least};
  }

 private:
  using bits_type = std::conditional_t<sizeof(NumberT) == 4, std::uint32_t, std::uint64_t>;
  using guesses = std::array<bits_type, 3>;  // three values of [low_, high_], ascending
  static constexpr std::size_t few = 1024;
  static constexpr std::size_t room = 2 * few;

  // The bits of a non-negative number as an integer: these are ordered as the numbers are.
  static bits_type bits_of(NumberT x) { return std::bit_cast<bits_type>(x); }
  static NumberT value_of(bits_type x) { return std::bit_cast<NumberT>(x); }

  // The largest x in [low, high) with holds(x).
  //
  // Pre         holds(low); holds is true up to some x and false above it
  template <class PredicateT>
  static bits_type last_where(bits_type low, bits_type high, const PredicateT& holds) {
    while (high - low > 1) {
      const bits_type middle = low + (high - low) / 2;
      (holds(middle) ? low : high) = middle;
    }
    return low;
  }

  // Narrows [low_, high_) at the value `at`; from_there is the sum of the weights that are at least as large.
  void update(bits_type at, wide_number from_there) {
    const bool reaches = from_there >= mass_;
    (reaches ? low_ : high_) = at;
    (reaches ? from_low_ : above_) = from_there;
  }

  // True if at most `few` weights can lie in [low_, high_): each is at least low_, and their sum is known.
  bool is_few() const {
    return from_low_ - above_ <= static_cast<wide_number>(few) * static_cast<wide_number>(value_of(low_));
  }

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
    // The mass that is cut off, divided by the number of weights that one sample stands for.
    const wide_number rest = (std::max)(wide_number{0}, from_low_ - mass_) / static_cast<wide_number>(stride);
    const bits_type guess = last_where(low_, largest + 1, [&](bits_type x) {
      const NumberT end = value_of(x);
      return block_mass([&](std::size_t i) { return sample[i] < end ? sample[i] : NumberT{0}; }, 0, n) <= rest;
    });
    // The error of the guessed rank is about sqrt(rest / cut) samples: `rest` is a sum of at least rest / cut samples,
    // none above the cut. The margin is three times that error, and four more.
    const wide_number error = 4 + 3 * std::sqrt(rest / static_cast<wide_number>(value_of(guess)));
    const auto margin = static_cast<std::uint32_t>((std::min)(error, static_cast<wide_number>(n)));
    const std::uint32_t rank = count_below(guess);
    const bits_type low = last_where(low_, guess + 1, [&](bits_type x) { return count_below(x) + margin <= rank; });
    const bits_type high = last_where(guess, high_, [&](bits_type x) { return count_below(x) < rank + margin; }) + 1;
    // If the upper value would lie above the largest sample, it is set halfway from that sample to high_ (by bits).
    return {low, guess, high > largest + 1 ? largest + (high_ - largest) / 2 : high};
  }

  // Three values around the cut that there would be if the mass in [low_, high_) were spread evenly.
  guesses guess_between() const {
    const bits_type width = high_ - low_;
    const wide_number part = (from_low_ - mass_) / (from_low_ - above_);
    const bits_type guess = low_ + (std::min)(width, static_cast<bits_type>(part * static_cast<wide_number>(width)));
    const bits_type step = width / 32 + 1;
    return {guess - (std::min)(step, guess - low_), guess, guess + (std::min)(step, high_ - guess)};
  }

  // Sums the weights from each of three values on, in one pass, and narrows the interval by each sum.
  void probe(std::span<const NumberT> weights, const guesses& at) {
    const NumberT a = value_of(at[0]), b = value_of(at[1]), c = value_of(at[2]);
    wide_number totals[3][mass_lanes] = {};
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
          totals[g][l] += static_cast<wide_number>(sums[g][l]);
      }
    }
    for (std::size_t g = 0; g < 3 && low_ <= at[g] && at[g] <= high_; ++g)
      update(at[g], std::accumulate(std::begin(totals[g]), std::end(totals[g]), wide_number{0}));
  }

  // The sum of the weights that are at least value_of(at), and the sum of those above it.
  static sums<2> masses_at(std::span<const NumberT> weights, bits_type at) {
    const NumberT least = value_of(at);
    return alone().sums_of(
        weights.size(), [=](std::size_t i) { return weights[i] < least ? NumberT{0} : weights[i]; },
        [=](std::size_t i) { return weights[i] > least ? weights[i] : NumberT{0}; });
  }

  // Makes low_ the largest value for which the sum of the weights from it on, over the whole row, reaches the mass.
  // Mostly low_ is this value already; otherwise bisection finds it, for such sums fall as the value rises.
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

  // Copies the weights in [low_, high_). Returns their number, or `room` if they do not fit.
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

  detail::list<NumberT> copied_;
  wide_number mass_ = 0;
  bits_type low_ = 0;
  bits_type high_ = 0;
  wide_number above_ = 0;     // sum of the weights from high_ on: less than mass_
  wide_number from_low_ = 0;  // sum of the weights from low_ on: at least mass_
};

}  // namespace espalier::detail
