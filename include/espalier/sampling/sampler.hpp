// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/sampling_options.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/sampling/nucleus.hpp"
#include "espalier/sampling/softmax.hpp"
#include "espalier/sampling/token_selection.hpp"

namespace espalier {

//! Turns a row of logits into probabilities: temperature, then top-k, top-p, min-p, each followed by a new
//! normalisation. At temperature 0 the most probable token has probability 1. Of tokens with equal logits the lower id
//! is kept first, but min-p keeps all of them. A token with a logit of minus infinity has probability 0; top-k keeps
//! fewer than k if fewer are possible. Sums are added up in the order of core/sums.hpp: within a block in the rows'
//! type, over the blocks in wide_number.
//!
//! NumberT is the type of the logits, float or double.
//!
//! Complexity  passes over the vocabulary:
//!             temperature 0                    2: maximum, zeroes; and one up to the most probable token
//!             temperature alone or with min-p  3: maximum, exponentials, division
//!             with top-p                       mostly 7: maximum, exponentials, about 4 to find the cut, division; one
//!                                              more if min-p leaves out more than top-p
//!             with top-k                       2: search for the k, zeroes; and O(k log k) for these
//!             No sort of the row; no allocation after reserve()
//! Errors      option_error for options out of range; otherwise as max_logit
template <class NumberT = float>
class sampler {
 public:
  explicit sampler(sampling_options options = {}) : options_(require_options(options)) {}

  //! Sets other options. The memory that was reserved stays; other options may need more, which reserve() takes.
  void set(const sampling_options& options) { options_ = require_options(options); }

  const sampling_options& options() const { return options_; }
  bool is_greedy() const { return options_.temperature == 0.0F; }

  //! Makes room for rows of this length under the present options, so that probabilities() does not allocate.
  void reserve(std::int32_t vocab) {
    if (is_greedy()) return;
    const auto size = static_cast<std::size_t>(vocab);
    const std::size_t k = top_of(options_, size);
    if (k < size) {
      if (row_.size() < k) row_.resize(k);
      selection_.reserve(size, k);
    }
    if (options_.top_p < 1.0F) nucleus_.reserve();
  }

  //! Number of bytes that reserve() takes of an arena.
  static constexpr std::size_t bytes(const sampling_options& options, std::int32_t vocab) {
    if (options.temperature == 0.0F) return 0;
    const auto size = static_cast<std::size_t>(vocab);
    const std::size_t k = top_of(options, size);
    return (k < size ? arena::bytes_of<NumberT>(k) + detail::token_selection<NumberT>::bytes(size, k) : 0) +
           (options.top_p < 1.0F ? detail::nucleus<NumberT>::bytes() : 0);
  }

  //! Writes the distribution of the next token. `row` names the row in errors.
  //!
  //! Shapes      logits, out: [vocab]
  void probabilities(std::span<const NumberT> logits, std::span<NumberT> out, row_origin row) {
    if (is_greedy()) {
      const token_id best = argmax(logits, row);
      std::fill(out.begin(), out.end(), NumberT{0});
      out[static_cast<std::size_t>(best)] = 1;
      return;
    }
    const std::size_t k = top_of(options_, logits.size());
    if (k == logits.size()) {
      distribute(logits, max_logit(logits, row), out);
      return;
    }
    reserve(static_cast<std::int32_t>(logits.size()));
    const std::span<const ranked> top = take_top(logits, k, row);
    const std::span<NumberT> kept = std::span<NumberT>(row_).first(top.size());
    NumberT best = top[0].number();
    for (std::size_t i = 0; i < top.size(); ++i)
      best = (std::max)(best, kept[i] = top[i].number());
    distribute(kept, best, kept);
    std::fill(out.begin(), out.end(), NumberT{0});
    for (std::size_t i = 0; i < top.size(); ++i)
      out[static_cast<std::size_t>(top[i].token)] = kept[i];
  }

 private:
  using ranked = typename detail::token_selection<NumberT>::entry;
  static constexpr NumberT infinity = std::numeric_limits<NumberT>::infinity();

  // Number of tokens that top-k leaves.
  static constexpr std::size_t top_of(const sampling_options& options, std::size_t vocab) {
    return options.top_k > 0 ? (std::min)(static_cast<std::size_t>(options.top_k), vocab) : vocab;
  }

  // Writes the probabilities of these logits after temperature, top-p and min-p. `best` is the largest logit. The
  // exponentials are those of logit - best, so that the largest is 1 and min-p, a fraction of it, is compared directly.
  void distribute(std::span<const NumberT> logits, NumberT best, std::span<NumberT> out) {
    const auto temperature = static_cast<NumberT>(options_.temperature);
    const auto min_p = static_cast<NumberT>(options_.min_p);
    if (options_.top_p == 1.0F) {
      detail::divide(out, detail::exponentials(logits, best, temperature, min_p, out));
      return;
    }
    const wide_number total = detail::exponentials(logits, best, temperature, NumberT{0}, out);
    detail::row_cut<NumberT> cut = nucleus_.find(out, static_cast<wide_number>(options_.top_p) * total, total);
    if (min_p > cut.least) cut = {min_p, cut.all_ties, detail::mass_from<NumberT>(out, min_p)};
    detail::keep(out, cut);
  }

  // Returns the k largest logits in the order of their tokens, or all above minus infinity if these are fewer.
  std::span<const ranked> take_top(std::span<const NumberT> logits, std::size_t k, row_origin row) {
    using count = std::conditional_t<sizeof(NumberT) == 4, std::int32_t, std::int64_t>;
    const auto is_bad_number = [](NumberT x) { return x < infinity ? count{0} : count{-1}; };
    bool is_bad = false;
    selection_.scan(logits, [&](const NumberT* block, NumberT* maxima, std::size_t) {
      is_bad = detail::scan_block(block, is_bad_number, maxima) != 0 || is_bad;
    });
    if (is_bad) detail::raise_first_bad_logit(logits, row);
    const std::span<ranked> top = selection_.select(logits, k, std::numeric_limits<NumberT>::lowest());
    if (top.empty()) detail::raise_no_token(row);
    std::sort(top.begin(), top.end(), [](const ranked& a, const ranked& b) { return a.token < b.token; });
    return top;
  }

  sampling_options options_;
  detail::token_selection<NumberT> selection_;
  detail::list<NumberT> row_;  // the k largest logits, then their probabilities, in the order of their tokens
  detail::nucleus<NumberT> nucleus_;
};

}  // namespace espalier
