// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <span>
#include <type_traits>

#include "espalier/core/row_origin.hpp"
#include "espalier/core/sums.hpp"
#include "espalier/core/token.hpp"
#include "espalier/sampling/exponential.hpp"
#include "espalier/sampling/softmax.hpp"
#include "espalier/sampling/token_selection.hpp"
#include "espalier/sampling/top_k.hpp"

namespace espalier {

//! A token of a row with its log probability.
template <class NumberT>
struct ranked_token {
  token_id token;
  NumberT log_prob;
};

namespace detail {

// The sum of e^logit over a row, which is added up block by block.
template <class NumberT>
class exp_total {
 public:
  // Adds a block and writes the maxima of its groups; the first `n` of its numbers are the row's, from token `first`
  // on.
  //
  // Errors      numeric_error if a logit is NaN or plus infinity
  void add(const NumberT* block, NumberT* maxima, std::size_t n, std::size_t first, row_origin row) {
    const double mass = plain_mass(block, maxima);
    const NumberT largest = largest_of(maxima);
    if (largest >= plain_from && largest <= plain_to && mass >= 0) {
      add({0, mass});
    } else {
      require_below_infinity(block, n, first, row);
      add(largest > -infinity ? exp_sum{static_cast<double>(largest), relative_mass(block, largest, maxima)}
                              : exp_sum{});
    }
  }

  // The logarithm of the sum; minus infinity if the sum is 0. It may be called only once, because it changes the sums.
  double log() {
    halve(sums_, part_lanes);
    return sums_[0].sum > 0 ? sums_[0].log(unit) : -std::numeric_limits<double>::infinity();
  }

 private:
  static constexpr NumberT infinity = std::numeric_limits<NumberT>::infinity();
  static constexpr double unit = std::is_same_v<NumberT, float> ? double{scaled_exp_at_0} : 1.0;

  // The sum of e^logit over the block, times `unit`; NaN if a logit is NaN or plus infinity.
  static double plain_mass(const NumberT* block, NumberT* maxima) {
    if constexpr (std::is_same_v<NumberT, float>) {
      return scan_block(
          block, [](float x) { return scaled_exp(x); }, maxima);
    } else {
      return scan_block(
          block, [](double x) { return std::exp(x); }, maxima);
    }
  }

  static double relative_mass(const NumberT* block, NumberT largest, NumberT* maxima) {
    constexpr auto scale = std::numbers::log2e_v<NumberT>;
    const auto weigh = [largest](NumberT x) { return exp2_of_minus((largest - x) * scale); };
    return scan_block(block, weigh, maxima) * unit;
  }

  static void require_below_infinity(const NumberT* block, std::size_t n, std::size_t first, row_origin row) {
    const NumberT* at = std::find_if(block, block + n, [](NumberT x) { return !(x < infinity); });
    if (at == block + n) return;
    raise_bad_logit(row, static_cast<std::int64_t>(first) + (at - block), static_cast<double>(*at));
  }

  // The largest of a block's maxima, found by halving their number, which vectorises.
  static NumberT largest_of(const NumberT* maxima) {
    constexpr std::size_t half = mass_block / token_group / 2;
    NumberT a[half];
    for (std::size_t i = 0; i < half; ++i)
      a[i] = larger(maxima[i], maxima[half + i]);
    for (std::size_t n = half / 2; n > 0; n /= 2) {
      for (std::size_t i = 0; i < n; ++i)
        a[i] = larger(a[i], a[n + i]);
    }
    return a[0];
  }

  void add(exp_sum sum) { sums_[n_blocks_++ % part_lanes] += sum; }

  exp_sum sums_[part_lanes];
  std::size_t n_blocks_ = 0;
};

}  // namespace detail

//! Finds the most probable tokens of a row of logits or of probabilities: many tokens of a large vocabulary, without
//! sorting the row. For few tokens of a row of probabilities, top_k(row, out) suffices and needs no state.
//!
//! NumberT is the type of the rows, float or double.
//!
//! Complexity  one pass over the row, for the sum of exponentials and for the largest number of every 32 tokens; about
//!             k of these groups are read again, from the caches. No allocation after reserve()
template <class NumberT = float>
class top_tokens {
 public:
  //! Makes room for rows of `vocab` numbers and k tokens of them, so that no call allocates.
  void reserve(std::int32_t vocab, std::int32_t k) {
    selection_.reserve(static_cast<std::size_t>(vocab), static_cast<std::size_t>(k));
  }

  //! Writes the tokens of the k largest logits with their log probabilities, most probable first, ties by lower id.
  //! Returns the number of tokens written: k, or all with a finite logit if these are fewer. A token with a logit of
  //! minus infinity is never written. The exponentials that a float row is normalised by have a relative error of
  //! 2.5e-7.
  //!
  //! Shapes      logits [vocab]; out [k], which may be empty (the row is checked all the same) or longer than the row
  //! Errors      input_error for an empty row; numeric_error that names row and token if a logit is NaN or plus
  //!             infinity; numeric_error if all logits are minus infinity
  std::int32_t of_logits(std::span<const NumberT> logits, std::span<ranked_token<NumberT>> out, row_origin row) {
    if (logits.empty()) detail::raise_empty_row(row);
    detail::exp_total<NumberT> total;
    std::size_t first = 0;
    selection_.scan(logits, [&](const NumberT* block, NumberT* maxima, std::size_t n) {
      total.add(block, maxima, n, first, row);
      first += n;
    });
    log_total_ = total.log();
    if (log_total_ == -std::numeric_limits<double>::infinity()) detail::raise_no_token(row);
    constexpr NumberT least = std::numeric_limits<NumberT>::lowest();
    constexpr double lowest = least;  // log probabilities below it are raised to it
    const auto top = selection_.select(logits, out.size(), least);
    for (std::size_t i = 0; i < top.size(); ++i) {
      const double log_prob = static_cast<double>(top[i].number()) - log_total_;
      out[i] = {top[i].token, static_cast<NumberT>(std::clamp(log_prob, lowest, 0.0))};
    }
    return static_cast<std::int32_t>(top.size());
  }

  //! The logarithm of the sum of e^logit over the last row that of_logits() has read: logit - log_total() is a token's
  //! log probability.
  double log_total() const { return log_total_; }

  //! Writes the k most probable tokens with their probabilities, as top_k(row, out) does: most probable first, ties by
  //! lower id, no zeros. Returns the number of tokens written: k, or all with a probability above 0 if these are fewer.
  //!
  //! Shapes      row [vocab]; out [k], which may be empty or longer than the row
  std::int32_t of_probabilities(std::span<const NumberT> row, std::span<candidate<NumberT>> out) {
    selection_.scan(row, [](const NumberT* block, NumberT* maxima, std::size_t) {
      detail::scan_block(
          block, [](NumberT x) { return x; }, maxima);
    });
    const auto top = selection_.select(row, out.size(), std::numeric_limits<NumberT>::denorm_min());
    for (std::size_t i = 0; i < top.size(); ++i)
      out[i] = {top[i].token, top[i].number()};
    return static_cast<std::int32_t>(top.size());
  }

 private:
  detail::token_selection<NumberT> selection_;
  double log_total_ = 0;
};

}  // namespace espalier
