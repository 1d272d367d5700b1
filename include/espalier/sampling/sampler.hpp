// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/sampling/nucleus.hpp"
#include "espalier/sampling/softmax.hpp"
#include "espalier/sampling/token_selection.hpp"

namespace espalier {

//! How logits become the distribution that tokens are drawn from.
struct sampling_options {
  float temperature = 0.0F;  //!< 0 takes the most probable token
  std::int32_t top_k = 0;    //!< only the k most probable tokens; 0: all
  float top_p = 1.0F;        //!< only the fewest most probable tokens that together reach this probability
  float min_p = 0.0F;        //!< only tokens at least this fraction as probable as the most probable
};

//! Turns a row of logits into probabilities: temperature, then top-k, top-p, min-p, each renormalised. Ties at a cut go
//! to the lower id. Masses are sums of float, taken in blocks, that are added in double.
//!
//! NumberT is that of the logits, float or double.
//!
//! Complexity  passes over the vocabulary, of which it needs as many:
//!             temperature alone or with min-p  3: maximum, exponentials, division
//!             with top-p                       5: maximum, exponentials, search for the cut, its sums, division
//!             with top-k                       2: search for the k, zeroes; and O(k log k) for these
//!             No sort of the row; no allocation after reserve()
//! Errors      option_error for options out of range; numeric_error as max_logit
template <class NumberT = float>
class sampler {
 public:
  explicit sampler(sampling_options options = {}) : options_(options) {
    require_option("temperature", options.temperature, 0.0F, 100.0F);
    require_option("top_k", options.top_k, 0, 1 << 30);
    require_option("top_p", options.top_p, 1e-6F, 1.0F);
    require_option("min_p", options.min_p, 0.0F, 1.0F);
  }

  const sampling_options& options() const { return options_; }
  bool is_greedy() const { return options_.temperature == 0.0F; }

  //! Makes room for rows of this length, so that probabilities() does not allocate.
  void reserve(std::int32_t vocab) {
    if (is_greedy()) return;
    const auto size = static_cast<std::size_t>(vocab);
    const std::size_t k = top_of(size);
    if (k < size) {
      if (row_.size() < k) row_.resize(k);
      selection_.reserve(size, k);
    }
    if (options_.top_p < 1.0F) nucleus_.reserve();
  }

  //! Shapes      logits, out: [vocab]
  void probabilities(std::span<const NumberT> logits, std::span<NumberT> out, std::int32_t row) {
    if (is_greedy()) {
      const token_id best = argmax(logits, row);
      std::fill(out.begin(), out.end(), NumberT{0});
      out[static_cast<std::size_t>(best)] = 1;
      return;
    }
    const std::size_t k = top_of(logits.size());
    if (k == logits.size()) {
      distribute(logits, max_logit(logits, row), out);
      return;
    }
    reserve(static_cast<std::int32_t>(logits.size()));
    const std::span<const ranked> top = take_top(logits, k, row);
    const std::span<NumberT> kept = std::span<NumberT>(row_).first(k);
    NumberT best = top[0].number();
    for (std::size_t i = 0; i < k; ++i)
      best = (std::max)(best, kept[i] = top[i].number());
    distribute(kept, best, kept);
    std::fill(out.begin(), out.end(), NumberT{0});
    for (std::size_t i = 0; i < k; ++i)
      out[static_cast<std::size_t>(top[i].token)] = kept[i];
  }

 private:
  using ranked = typename detail::token_selection<NumberT>::entry;

  // How many tokens top-k leaves.
  std::size_t top_of(std::size_t vocab) const {
    return options_.top_k > 0 ? (std::min)(static_cast<std::size_t>(options_.top_k), vocab) : vocab;
  }

  // Temperature, top-p and min-p. The exponentials are relative to the largest, as min-p is.
  void distribute(std::span<const NumberT> logits, NumberT best, std::span<NumberT> out) {
    const auto temperature = static_cast<NumberT>(options_.temperature);
    const auto min_p = static_cast<NumberT>(options_.min_p);
    if (options_.top_p == 1.0F) {
      detail::divide(out, detail::exponentials(logits, best, temperature, min_p, out));
      return;
    }
    const double total = detail::exponentials(logits, best, temperature, NumberT{0}, out);
    detail::row_cut<NumberT> cut = nucleus_.find(out, static_cast<double>(options_.top_p) * total, total);
    if (min_p > cut.least) cut = {min_p, cut.all_ties, detail::mass_from<NumberT>(out, min_p)};
    detail::keep(out, cut);
  }

  // The k largest logits, by token.
  std::span<const ranked> take_top(std::span<const NumberT> logits, std::size_t k, std::int32_t row) {
    const auto zero_if_finite = [](NumberT x) { return x - x; };  // else NaN
    bool finite = true;
    selection_.scan(logits, [&](const NumberT* block, NumberT* maxima, std::size_t n) {
      const bool suspect = detail::scan_block(block, zero_if_finite, maxima) != 0;
      finite = finite && (!suspect || detail::all_finite(block, n));
    });
    if (!finite) detail::raise_not_finite(logits, row);
    const std::span<ranked> top = selection_.select(logits, k, std::numeric_limits<NumberT>::lowest());
    std::sort(top.begin(), top.end(), [](const ranked& a, const ranked& b) { return a.token < b.token; });
    return top;
  }

  sampling_options options_;
  detail::token_selection<NumberT> selection_;
  std::vector<NumberT> row_;  // of the k, by token
  detail::nucleus<NumberT> nucleus_;
};

}  // namespace espalier
