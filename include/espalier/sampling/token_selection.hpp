// SPDX-License-Identifier: BSL-1.0
// Tested by tests/sampling/top_tokens.cpp
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/weights.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/sampling/exponential.hpp"

namespace espalier::detail {

// Number of neighbouring tokens that form a group, of which only the largest number is read at first.
inline constexpr std::size_t token_group = 32;
// Number of groups whose flags fill a word.
inline constexpr std::size_t group_word = 64;

template <class NumberT>
NumberT larger(NumberT a, NumberT b) {
  return a < b ? b : a;
}

// Writes the largest number of each group of a block to `maxima` [mass_block / token_group], and returns the sum of
// weigh(number). A NaN may be missing among the maxima. It is not inlined: in its caller the compiler would unroll the
// short loops before it vectorises them.
template <class NumberT, class WeighT>
[[gnu::noinline]] double scan_block(const NumberT* block, const WeighT& weigh, NumberT* maxima) {
  constexpr std::size_t half = token_group / 2;
  decltype(weigh(NumberT{})) sum[mass_lanes] = {};
  NumberT a[mass_block / 2], b[mass_block / 4];
  for (std::size_t i = 0; i < mass_block; i += mass_lanes) {
    for (std::size_t l = 0; l < mass_lanes; ++l)
      sum[l] += weigh(block[i + l]);
    for (std::size_t g = i; g < i + mass_lanes; g += token_group) {
      for (std::size_t l = 0; l < half; ++l)
        a[g / 2 + l] = larger(block[g + l], block[g + half + l]);
    }
  }
  for (std::size_t i = 0; i < mass_block / 4; ++i)
    b[i] = larger(a[2 * i], a[2 * i + 1]);
  for (std::size_t i = 0; i < mass_block / 8; ++i)
    a[i] = larger(b[2 * i], b[2 * i + 1]);
  for (std::size_t i = 0; i < mass_block / 16; ++i)
    b[i] = larger(a[2 * i], a[2 * i + 1]);
  for (std::size_t i = 0; i < mass_block / 32; ++i)
    maxima[i] = larger(b[2 * i], b[2 * i + 1]);
  return block_mass([&](std::size_t l) { return sum[l]; }, 0, mass_lanes);
}

// Flags of 32 numbers: bit l is set if numbers[l] is at least `least`.
template <class NumberT>
std::uint32_t flags_from(const NumberT* numbers, NumberT least) {
  std::uint32_t flags = 0;
  for (std::uint32_t l = 0; l < 32; ++l)
    flags |= numbers[l] >= least ? 1U << l : 0U;
  return flags;
}

// Finds the k largest numbers of a row, ties by lower token, from the largest number of each group of tokens.
//
// The k-th largest of these maxima is a lower bound of the k largest numbers: only groups that reach it are read again.
// The numbers that are found are sorted by their leading 16 bits, digit by digit, and those that agree in these by
// comparison. If few groups or many ties let too many numbers through, they are cut to k each time there are 2k.
//
// Complexity  beside scan_block over the row: about eight passes over vocab / 32 maxima; k groups; O(k) for the sort
template <class NumberT>
class token_selection {
 public:
  using bits_type = std::conditional_t<sizeof(NumberT) == 4, std::uint32_t, std::uint64_t>;

  struct entry {
    bits_type place;  // sort key: the lower, the larger the number
    token_id token;

    NumberT number() const { return number_at(~place); }
  };

  // Makes room for rows of `vocab` numbers, k of which are selected.
  void reserve(std::size_t vocab, std::size_t k) {
    const std::size_t n_maxima = maxima_of(vocab), room = room_for(vocab, k);
    if (maxima_.size() < n_maxima) maxima_.resize(n_maxima);
    if (found_.size() < room) {
      found_.resize(room);
      sorted_.resize(room);
    }
    tail_.resize(mass_block);
  }

  // Number of bytes that reserve() takes of an arena.
  static constexpr std::size_t bytes(std::size_t vocab, std::size_t k) {
    return arena::bytes_of<NumberT>(maxima_of(vocab)) + 2 * arena::bytes_of<entry>(room_for(vocab, k)) +
           arena::bytes_of<NumberT>(mass_block);
  }

  // Calls scan(block, maxima, n) for each block of the row; it must write the maxima of the block's groups. The first n
  // of the block's numbers are the row's; the others are minus infinity.
  template <class ScanT>
  void scan(std::span<const NumberT> row, const ScanT& scan) {
    reserve(row.size(), 0);
    NumberT* maxima = maxima_.data();
    std::size_t i = 0;
    for (; i + mass_block <= row.size(); i += mass_block, maxima += mass_block / token_group)
      scan(row.data() + i, maxima, mass_block);
    std::fill(maxima, maxima_.data() + maxima_.size(), -infinity);
    if (i == row.size()) return;
    std::fill(std::copy(row.begin() + static_cast<std::ptrdiff_t>(i), row.end(), tail_.begin()), tail_.end(),
              -infinity);
    scan(tail_.data(), maxima, row.size() - i);
  }

  // Returns the k largest of the numbers that are at least `least`, largest first; fewer if there are fewer. Valid
  // until the next call.
  //
  // Pre         scan() was last called with this row
  std::span<entry> select(std::span<const NumberT> row, std::size_t k, NumberT least) {
    reserve(row.size(), k);
    n_ = 0;
    if (k == 0) return {};
    const std::size_t n_groups = (row.size() + token_group - 1) / token_group;
    least = bound(n_groups, k, least);
    const std::size_t tail = row.size() / mass_block * mass_block;
    for (std::size_t word = 0; word < n_groups; word += group_word) {
      const NumberT* maxima = maxima_.data() + word;
      const std::uint64_t high = flags_from(maxima + 32, least);
      for (std::uint64_t groups = high << 32 | flags_from(maxima, least); groups != 0; groups &= groups - 1) {
        const std::size_t first = (word + static_cast<std::size_t>(std::countr_zero(groups))) * token_group;
        collect(first < tail ? row.data() + first : tail_.data() + (first - tail), first, least);
      }
      if (n_ < 2 * k) continue;
      sort();
      n_ = k;
      least = number_at(~found_[k - 1].place + 1);  // later tokens lose ties
    }
    sort();
    return std::span<entry>(found_).first((std::min)(n_, k));
  }

 private:
  static constexpr NumberT infinity = std::numeric_limits<NumberT>::infinity();
  static constexpr std::size_t maxima_of(std::size_t vocab) {
    const std::size_t n_blocks = vocab / mass_block + 1;
    return (n_blocks * mass_block / token_group + group_word - 1) / group_word * group_word;
  }
  static constexpr std::size_t room_for(std::size_t vocab, std::size_t k) {
    return 2 * (std::min)(k, vocab) + group_word * token_group;
  }

  static constexpr int digit = 8;
  static constexpr bits_type mask = (bits_type{1} << digit) - 1;

  // The number's bits, changed so that integers are ordered as the numbers are, negative ones included.
  static bits_type place_of(NumberT x) {
    constexpr bits_type sign = bits_type{1} << (8 * sizeof(NumberT) - 1);
    const auto bits = std::bit_cast<bits_type>(x);
    return (bits & sign) != 0 ? static_cast<bits_type>(~bits) : static_cast<bits_type>(bits | sign);
  }
  static NumberT number_at(bits_type place) {
    constexpr bits_type sign = bits_type{1} << (8 * sizeof(NumberT) - 1);
    return std::bit_cast<NumberT>((place & sign) != 0 ? place ^ sign : static_cast<bits_type>(~place));
  }

  // Returns a number that at least k of the maxima reach, but not many more than k; `least` if fewer than k maxima
  // reach `least`. The search alternates between the point where the bound would lie if the logarithm of the count
  // were linear, and halving.
  NumberT bound(std::size_t n_groups, std::size_t k, NumberT least) const {
    if (n_groups <= k) return least;
    NumberT smallest[group_word], largest[group_word];
    std::fill(std::begin(smallest), std::end(smallest), infinity);
    std::fill(std::begin(largest), std::end(largest), least);
    for (std::size_t i = 0; i < maxima_.size(); i += group_word) {
      for (std::size_t l = 0; l < group_word; ++l) {
        const NumberT x = maxima_[i + l];
        smallest[l] = x >= least && x < smallest[l] ? x : smallest[l];
        largest[l] = larger(largest[l], x);
      }
    }
    bits_type low = place_of(least);
    bits_type high = place_of(*std::max_element(std::begin(largest), std::end(largest))) + 1;
    bits_type middle = (std::min)(high - 1, place_of(*std::min_element(std::begin(smallest), std::end(smallest))));
    wide_number n_low = static_cast<wide_number>(n_groups), n_high = 1;
    for (bool halve = false; high - low > 1; halve = !halve) {
      const std::size_t n = count_from(number_at(middle));
      if (n >= k && n <= k + k / 16 + 1) return number_at(middle);
      (n >= k ? low : high) = middle;
      (n >= k ? n_low : n_high) = static_cast<wide_number>((std::max)(n, std::size_t{1}));
      const wide_number part =
          halve ? wide_number{0.5} : log_of(n_low / static_cast<wide_number>(k)) / log_of(n_low / n_high);
      const auto step =
          static_cast<bits_type>((std::min)(part, wide_number{0.9}) * static_cast<wide_number>(high - low));
      middle = low + (std::max)(step, bits_type{1});
    }
    return number_at(low);
  }

  std::size_t count_from(NumberT least) const {
    std::uint32_t count[group_word] = {};
    for (std::size_t i = 0; i < maxima_.size(); i += group_word) {
      for (std::size_t l = 0; l < group_word; ++l)
        count[l] += maxima_[i + l] >= least ? 1U : 0U;
    }
    std::size_t total = 0;
    for (const std::uint32_t n : count)
      total += n;
    return total;
  }

  void collect(const NumberT* group, std::size_t first, NumberT least) {
    entry* to = found_.data() + n_;
    for (std::uint32_t flags = flags_from(group, least); flags != 0; flags &= flags - 1) {
      const auto l = static_cast<std::size_t>(std::countr_zero(flags));
      // Zero is added so that -0 becomes 0.
      *to++ = {~place_of(group[l] + NumberT{0}), static_cast<token_id>(first + l)};
    }
    n_ = static_cast<std::size_t>(to - found_.data());
  }

  // Sorts the found numbers by key, then by token.
  void sort() {
    bits_type low = (std::numeric_limits<bits_type>::max)(), high = 0;
    for (std::size_t i = 0; i < n_; ++i) {
      low = (std::min)(low, found_[i].place);
      high = (std::max)(high, found_[i].place);
    }
    const int width = n_ == 0 ? 0 : static_cast<int>(std::bit_width(high - low));
    const int dropped = (std::max)(0, width - 2 * digit);
    std::uint32_t start[2][std::size_t{1} << digit] = {};
    for (std::size_t i = 0; i < n_; ++i) {
      const bits_type leading = (found_[i].place - low) >> dropped;
      ++start[0][leading & mask];
      ++start[1][leading >> digit];
    }
    move_by_digit(start[0], low, dropped);
    move_by_digit(start[1], low, dropped + digit);
    if (dropped > 0) sort_runs(low, dropped);
  }

  // Moves the entries into the order of one digit, stably.
  //
  // Pre         `start` counts the entries of each digit
  void move_by_digit(std::uint32_t* start, bits_type low, int shift) {
    std::uint32_t sum = 0;
    for (std::size_t d = 0; d <= mask; ++d)
      sum += std::exchange(start[d], sum);
    const entry* from = found_.data();
    entry* to = sorted_.data();
    for (std::size_t i = 0; i < n_; ++i)
      to[start[(from[i].place - low) >> shift & mask]++] = from[i];
    found_.swap(sorted_);
  }

  // Sorts by comparison each run of entries that agree in the bits that were not dropped, if it is out of order. Equal
  // numbers are already ordered by token.
  void sort_runs(bits_type low, int dropped) {
    entry* const all = found_.data();
    for (std::size_t i = 1; i < n_; ++i) {
      if (all[i].place >= all[i - 1].place) continue;
      const bits_type leading = (all[i].place - low) >> dropped;
      const auto differs = [=](const entry& e) { return (e.place - low) >> dropped != leading; };
      std::size_t first = i;
      while (first > 0 && !differs(all[first - 1]))
        --first;
      while (i < n_ && !differs(all[i]))
        ++i;
      std::sort(all + first, all + i, [](const entry& a, const entry& b) {
        return a.place < b.place || (a.place == b.place && a.token < b.token);
      });
    }
  }

  detail::list<NumberT> maxima_;
  detail::list<NumberT> tail_;  // [mass_block] the last block of the row, filled up with minus infinity
  detail::list<entry> found_;
  detail::list<entry> sorted_;
  std::size_t n_ = 0;
};

}  // namespace espalier::detail
