// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <span>
#include <type_traits>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
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

// e^-x times its number at 0, for finite x from -20 upwards: with fewer operations than exp2_of_minus, and NaN for minus
// infinity. Relative error, where the machine fuses products and sums: below 2.5e-7 up to 20, 4e-7 beyond; 0 from e^-88
// downwards. Source of the polynomial: the best of degree 5 in relative error that is 1 at 0, by linear programming,
// scaled so that its highest coefficient is 1.
inline constexpr float scaled_exp_at_0 = 120.6233F;
inline float scaled_exp_of_minus(float x) {
  // Adding it rounds to an integer, with the exponent's bias in the low bits.
  constexpr float zero_exponent = 12582912.0F;
  constexpr float rounding = zero_exponent + 127.0F;
  const float s = x * -std::numbers::log2e_v<float> + rounding;
  const float r = (s - rounding) * -std::numbers::ln2_v<float> - x;
  float y = r + 5.0538945F;
  y = y * r + 20.105055F;
  y = y * r + 60.310623F;
  y = y * r + 120.62327F;
  y = y * r + scaled_exp_at_0;
  const auto bits = (std::max)(std::bit_cast<std::int32_t>(s), std::bit_cast<std::int32_t>(zero_exponent));
  return y * std::bit_cast<float>(bits << 23);
}

// The sum of e^logit over a row, block by block, as sum * e^reference: the reference is a logit that hardly any exceeds.
template <class NumberT>
class exp_total {
 public:
  // Adds a block and writes the maxima of its groups; `n` of its numbers are the row's, from token `first` on.
  void add(const NumberT* block, NumberT* maxima, std::size_t n, std::size_t first, std::int32_t row) {
    double mass = quick_mass(block, maxima);
    const NumberT largest = largest_of(maxima);
    // Far above the reference the quick exponentials are not even large.
    if (!(mass <= limit && largest - reference_ <= highest) && raise_reference(largest))
      mass = quick_mass(block, maxima);
    if (!(mass <= limit)) mass = careful_mass(block, maxima, n, first, row);
    sum_ += mass;
  }

  bool is_zero() const { return reference_ == -infinity; }
  double log() const { return static_cast<double>(reference_) + std::log(sum_ / unit); }

 private:
  static constexpr NumberT infinity = std::numeric_limits<NumberT>::infinity();
  static constexpr double unit = std::is_same_v<NumberT, float> ? double{scaled_exp_at_0} : 1.0;
  // Where the mass of a block is at most this, no logit is so far above the reference that rounding it would matter.
  static constexpr double limit = 1e6 * unit;
  static constexpr NumberT highest = 20;

  double quick_mass(const NumberT* block, NumberT* maxima) const {
    const NumberT reference = reference_;
    if constexpr (std::is_same_v<NumberT, float>) {
      return scan_block(
          block, [reference](float x) { return scaled_exp_of_minus(reference - x); }, maxima);
    } else {
      return scan_block(
          block, [reference](double x) { return std::exp(x - reference); }, maxima);
    }
  }

  // For blocks with logits that are not finite, or so far below the reference that they might as well not be.
  double careful_mass(const NumberT* block, NumberT* maxima, std::size_t n, std::size_t first, std::int32_t row) const {
    std::uint32_t faults = 0;
    for (std::size_t i = 0; i < n; ++i)
      faults |= block[i] < infinity ? 0U : 1U;
    if (faults != 0) {
      const NumberT* at = std::find_if(block, block + n, [](NumberT x) { return !(x < infinity); });
      raise<numeric_error>("the logit of token ", first + static_cast<std::size_t>(at - block), " in row ", row, " is ",
                           *at, "; logits must be finite or minus infinity. The model or its weights are damaged.");
    }
    if (is_zero()) return 0;
    const NumberT reference = reference_;
    constexpr auto scale = std::numbers::log2e_v<NumberT>;
    const auto weigh = [reference](NumberT x) { return exp2_of_minus((reference - x) * scale); };
    return scan_block(block, weigh, maxima) * unit;
  }

  // By halves, which vectorises.
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

  bool raise_reference(NumberT largest) {
    if (!(largest > reference_)) return false;
    sum_ *= std::exp(static_cast<double>(reference_) - static_cast<double>(largest));
    reference_ = largest;
    return true;
  }

  NumberT reference_ = -infinity;
  double sum_ = 0;
};

}  // namespace detail

//! Finds the most probable tokens of a row of logits or of probabilities: many of a large vocabulary, without a sort of the
//! row. For few of a row of probabilities top_k(row, out) will do, which needs no state.
//!
//! NumberT is that of the rows, float or double.
//!
//! Complexity  one pass over the row, for the sum of exponentials and for the largest number of every 32 tokens; about k
//!             of these groups are read again, from the caches. No allocation after reserve()
template <class NumberT = float>
class top_tokens {
 public:
  //! Makes room for rows of this length and this many tokens of them, so that no call allocates.
  void reserve(std::int32_t vocab, std::int32_t k) {
    selection_.reserve(static_cast<std::size_t>(vocab), static_cast<std::size_t>(k));
  }

  //! Writes the tokens of the k largest logits with their log probabilities, most probable first, ties by lower id.
  //! A logit of minus infinity is a probability of 0: such a token is never written. The exponentials that a float row is
  //! normalised by have a relative error of 2.5e-7.
  //!
  //! Shapes      logits [vocab]; out [k], which may be empty (the row is checked all the same) or longer than the row
  //! Errors      input_error for an empty row; numeric_error that names row and token where a logit is NaN or plus
  //!             infinity; numeric_error where all are minus infinity
  //! Post        the number of tokens written: k, or all with a finite logit if these are fewer
  std::int32_t of_logits(std::span<const NumberT> logits, std::span<ranked_token<NumberT>> out, std::int32_t row) {
    if (logits.empty()) raise<input_error>("row ", row, " of the logits is empty.");
    detail::exp_total<NumberT> total;
    std::size_t first = 0;
    selection_.scan(logits, [&](const NumberT* block, NumberT* maxima, std::size_t n) {
      total.add(block, maxima, n, first, row);
      first += n;
    });
    if (total.is_zero())
      raise<numeric_error>("all logits in row ", row, " are minus infinity; one token at least must be possible.");
    log_total_ = total.log();
    constexpr NumberT least = std::numeric_limits<NumberT>::lowest();
    constexpr double lowest = least;  // log probabilities beyond it are cut off
    const auto top = selection_.select(logits, out.size(), least);
    for (std::size_t i = 0; i < top.size(); ++i) {
      const double log_prob = static_cast<double>(top[i].number()) - log_total_;
      out[i] = {top[i].token, static_cast<NumberT>(std::clamp(log_prob, lowest, 0.0))};
    }
    return static_cast<std::int32_t>(top.size());
  }

  //! The log of the sum of e^logit over the last row of logits: logit - log_total() is a log probability.
  double log_total() const { return log_total_; }

  //! Writes what top_k(row, out) does: the k most probable tokens, most probable first, ties by lower id, no zeros.
  //!
  //! Shapes      row [vocab]; out [k], which may be empty or longer than the row
  //! Post        the number of tokens written: k, or all with a probability above 0 if these are fewer
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
