// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "espalier/core/weights.hpp"
#include "espalier/verifier/khisti/window_flow.hpp"

//! One stage of Khisti's tournament, for the verifier khisti and for its analysis.
namespace espalier::detail {

// Selects one of two tokens that were drawn independently, one from the distribution a and one from b. The choice is
// made so that the distribution of the selected token comes as close to p as it can.
//
// Tokens are ranked by p - a b, the best first, ties by id. Of a pair the better token is selected. Only the best
// tokens, the window, share a pair of theirs by parts that a maximum flow finds, so that they cover as much of p as
// possible. The ranks and the shares decide how much of p is covered. The distribution of the selected token is known
// exactly whatever they are, and with that the verifier is lossless.
//
// So they may be rough where that is quicker. Up to ExactVocab tokens are sorted. More are ranked by the leading bits
// of their keys: keys nearer to 0 than some four times the average probability count as 0, and tokens of equal rank
// share a pair evenly. Either way the distribution of the selected token, outside the window, is
//
//     a (worse_b + same_b / 2) + b (worse_a + same_a / 2)
//
// where worse_a and same_a are the sums of a over the tokens of worse rank and of the same rank.
template <class NumberT, std::size_t ExactVocab = 1024>
class pair_select {
 public:
  static constexpr std::int32_t max_window = window_flow::max_size;

  void reserve(std::size_t vocab) {
    for (auto& distribution : distributions_)
      distribution.reserve(vocab);
    rank_.reserve(vocab);
    large_.reserve(vocab);
  }

  // The distribution of the selected token. Valid until the call after the next: the next one may take it for `a`.
  std::span<const NumberT> solve(std::span<const NumberT> p, std::span<const NumberT> a, std::span<const NumberT> b,
                                 std::int32_t window) {
    rank_.resize(p.size());
    p.size() <= ExactVocab ? rank_exactly(p, a, b) : rank_by_leading_bits(p, a, b);
    take_window(static_cast<std::size_t>(window));
    weigh_ranks(a, b);
    share_window(p, a, b);
    std::swap(distributions_[0], distributions_[1]);
    distributions_[0].resize(p.size());
    write_distribution(a, b);
    return {distributions_[0].data(), p.size()};
  }

  // In which proportion the pair {x, y} selects x and y.
  struct pair_shares {
    double x, y;
  };
  pair_shares shares(std::size_t x, std::size_t y) const {
    const std::size_t i = rank_[x];
    const std::size_t j = rank_[y];
    if (i < n_window_ && j < n_window_) return {flow_.share(i, j), flow_.share(j, i)};
    return {i <= j ? 1.0 : 0.0, j <= i ? 1.0 : 0.0};
  }

 private:
  struct masses {
    double a = 0;
    double b = 0;
  };

  static constexpr std::int32_t mantissa_bits = 4;
  static constexpr std::size_t most_ranks =
      std::max<std::size_t>(ExactVocab, max_window + (std::size_t{64} << mantissa_bits));

  // A token's rank is its place among the sorted.
  void rank_exactly(std::span<const NumberT> p, std::span<const NumberT> a, std::span<const NumberT> b) {
    std::array<double, ExactVocab> key;
    std::array<std::uint16_t, ExactVocab> order;
    for (std::size_t i = 0; i < p.size(); ++i) {
      key[i] = static_cast<double>(p[i]) - static_cast<double>(a[i]) * static_cast<double>(b[i]);
      order[i] = static_cast<std::uint16_t>(i);
    }
    std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(p.size()),
              [&](std::uint16_t i, std::uint16_t j) { return key[i] > key[j] || (key[i] == key[j] && i < j); });
    for (std::size_t i = 0; i < p.size(); ++i)
      rank_[order[i]] = static_cast<std::uint16_t>(i);
    n_ranks_ = small_rank_ = p.size();
    collect_large();
  }

  // Ranks 0 to max_window - 1 are kept free for the window. After them come, by their leading bits: keys above 0, the
  // largest first; then all small keys, with one rank; then keys below 0, the most negative last.
  void rank_by_leading_bits(std::span<const NumberT> p, std::span<const NumberT> a, std::span<const NumberT> b) {
    const auto exponents = std::min<std::int32_t>(static_cast<std::int32_t>(std::bit_width(p.size())), 30) - 2;
    const std::int32_t codes = exponents << mantissa_bits;
    const std::int32_t smallest = (128 - exponents) << mantissa_bits;  // of the bits of a large key that count
    const std::int32_t small_rank = max_window + codes;
    const auto rank = [&](std::size_t i) {
      const auto key = static_cast<float>(p[i] - a[i] * b[i]);
      const auto magnitude = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(key) & 0x7fffffffU);
      const std::int32_t above = (magnitude >> (23 - mantissa_bits)) - smallest + 1;
      const std::int32_t code = above < 0 ? 0 : above > codes ? codes : above;
      rank_[i] = static_cast<std::uint16_t>(key > 0 ? small_rank - code : small_rank + code);
    };
    std::size_t i = 0;
    for (; i + mass_lanes <= p.size(); i += mass_lanes) {
      for (std::size_t l = 0; l < mass_lanes; ++l)
        rank(i + l);
    }
    for (; i < p.size(); ++i)
      rank(i);
    small_rank_ = static_cast<std::size_t>(small_rank);
    n_ranks_ = small_rank_ + static_cast<std::size_t>(codes) + 1;
    collect_large();
  }

  // Collects the tokens that do not have the rank of small keys, by id. They are few: most stretches of the row have
  // none.
  void collect_large() {
    constexpr std::size_t stretch = 32;
    const auto passed_over = static_cast<std::uint16_t>(small_rank_);
    large_.resize(rank_.size());
    std::size_t n = 0;
    for (std::size_t begin = 0; begin < rank_.size(); begin += stretch) {
      const std::size_t end = (std::min)(begin + stretch, rank_.size());
      std::uint16_t other = 0;
      for (std::size_t i = begin; i < end; ++i)
        other = static_cast<std::uint16_t>(other | (rank_[i] ^ passed_over));
      for (std::size_t i = other != 0 ? begin : end; i < end; ++i) {
        large_[n] = static_cast<std::uint32_t>(i);
        n += rank_[i] != passed_over ? 1 : 0;
      }
    }
    large_.resize(n);
  }

  // Finds the best tokens with keys above the small ones, at most `size`, and gives them the ranks 0, 1, ...
  void take_window(std::size_t size) {
    n_window_ = 0;
    std::size_t last = size > 0 ? small_rank_ : 0;
    for (const std::uint32_t i : large_) {
      const std::uint16_t rank = rank_[i];
      if (rank >= last) continue;
      std::size_t at = n_window_ < size ? n_window_++ : size - 1;
      for (; at > 0 && rank_[window_[at - 1]] > rank; --at)
        window_[at] = window_[at - 1];
      window_[at] = i;
      if (n_window_ == size) last = rank_[window_[size - 1]];
    }
    for (std::size_t w = 0; w < n_window_; ++w)
      rank_[window_[w]] = static_cast<std::uint16_t>(w);
  }

  // For each rank, the factors of a and of b in the distribution of the selected token: worse_b + same_b / 2, worse_a +
  // same_a / 2.
  void weigh_ranks(std::span<const NumberT> a, std::span<const NumberT> b) {
    std::fill_n(sums_.begin(), n_ranks_, masses{});
    masses large;
    for (const std::uint32_t i : large_) {
      masses& same = sums_[rank_[i]];
      same.a += static_cast<double>(a[i]);
      same.b += static_cast<double>(b[i]);
      large.a += static_cast<double>(a[i]);
      large.b += static_cast<double>(b[i]);
    }
    if (large_.size() < a.size()) {
      sums_[small_rank_].a = (std::max)(0.0, mass(a) - large.a);
      sums_[small_rank_].b = (std::max)(0.0, mass(b) - large.b);
    }
    masses worse;
    for (std::size_t rank = n_ranks_; rank-- > 0;) {
      const masses same = sums_[rank];
      times_[rank] = {static_cast<NumberT>(worse.b + same.b / 2), static_cast<NumberT>(worse.a + same.a / 2)};
      worse.a += same.a;
      worse.b += same.b;
    }
  }

  void share_window(std::span<const NumberT> p, std::span<const NumberT> a, std::span<const NumberT> b) {
    const auto mass = [&](std::size_t i, std::size_t j) {
      return static_cast<double>(a[window_[i]]) * static_cast<double>(b[window_[j]]);
    };
    flow_.resize(n_window_);
    for (std::size_t i = 0; i < n_window_; ++i) {
      const std::size_t t = window_[i];
      flow_.set_mass(i,
                     static_cast<double>(a[t]) * static_cast<double>(times_[i].a) +
                         static_cast<double>(b[t]) * static_cast<double>(times_[i].b),
                     static_cast<double>(p[t]));
      for (std::size_t j = i + 1; j < n_window_; ++j)
        flow_.set_pair(i, j, mass(i, j) + mass(j, i));
    }
    flow_.balance();
  }

  void write_distribution(std::span<const NumberT> a, std::span<const NumberT> b) {
    NumberT* const out = distributions_[0].data();
    if (large_.size() < a.size()) {
      const factors times = times_[small_rank_];
      for (std::size_t i = 0; i < a.size(); ++i)
        out[i] = a[i] * times.a + b[i] * times.b;
    }
    for (const std::uint32_t i : large_)
      out[i] = a[i] * times_[rank_[i]].a + b[i] * times_[rank_[i]].b;
    for (std::size_t w = 0; w < n_window_; ++w)
      out[window_[w]] = static_cast<NumberT>(flow_.mass(w));
  }

  struct factors {
    NumberT a, b;
  };

  std::array<std::vector<NumberT>, 2> distributions_;  // of the selected token: the last one, and the one before it
  std::vector<std::uint16_t> rank_;                    // of each token; smaller is better
  std::vector<std::uint32_t> large_;                   // the tokens that are not small, by id
  std::size_t n_ranks_ = 0;
  std::size_t small_rank_ = 0;
  std::array<masses, most_ranks> sums_{};    // of each rank
  std::array<factors, most_ranks> times_{};  // of each rank
  std::array<std::size_t, max_window> window_{};
  std::size_t n_window_ = 0;
  window_flow flow_;
};

}  // namespace espalier::detail
