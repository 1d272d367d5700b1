// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/llama_backend.cpp
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/core/forward_batch_view.hpp"

namespace espalier::detail {

// The tokens that some rows of one sequence see, as their masks say, and where these tokens' keys and values lie.
//
// A place is a slot of the prefix, or a slot behind it that is in some row's mask. Places 0 to prefix - 1 are the slots
// of the prefix; the others follow, ascending. The tokens that one row sees are numbered from 0, too: a token
// of the prefix has the number of its place, and token prefix + i is in the place seen(row)[i].
class attention_rows {
 public:
  // Takes memory for sequences of up to so many slots.
  void reserve(int slots) {
    const auto n = static_cast<std::size_t>(slots);
    keys.resize(n);
    values.resize(n);
    columns_.resize(n);
    seen_.resize(n);
    bits_.resize(n / 32 + 1);
    before_.resize(bits_.size());
  }

  // Finds the places of rows first to last - 1. A row's window is its last `window` tokens, its own included; 0: all of
  // them.
  void find(const forward_batch_view& batch, const batch_sequence& sequence, int first, int last, int window) {
    batch_ = &batch;
    sequence_ = &sequence;
    window_ = window;
    prefix = sequence.prefix;
    list_columns(first, last);
    hidden = prefix;
    for (int row = first; row < last; ++row)
      hidden = (std::min)(hidden, first_token(prefix + count_bits(batch.mask_of(sequence, row))));
  }

  // Returns the slot of a place.
  int slot_of(int place) const {
    return place < prefix ? place : prefix + columns_[static_cast<std::size_t>(place - prefix)];
  }

  // Returns the places behind the prefix that are in a row's mask, within its window or not, ascending. The next call
  // overwrites them.
  std::span<const std::int32_t> seen(int row) {
    std::size_t n = 0;
    const auto mask = batch_->mask_of(*sequence_, row);
    for (std::size_t w = 0; w < mask.size(); ++w) {
      for (std::uint32_t rest = mask[w]; rest != 0; rest &= rest - 1) {
        const std::uint32_t below = (rest & (~rest + 1U)) - 1U;
        seen_[n++] = prefix + before_[w] + std::popcount(bits_[w] & below);
      }
    }
    return {seen_.data(), n};
  }

  // Returns the first of a row's tokens that are within its window, if the row has n tokens.
  int first_token(int n) const { return window_ > 0 ? (std::max)(n - window_, 0) : 0; }

  int prefix = 0;  // places of the prefix
  int places = 0;  // all places
  int hidden = 0;  // number of places of the prefix that lie before the windows of all rows
  // Addresses of one head's keys and values, [places]; only those from the worker's first_place() on are set.
  std::vector<const float*> keys, values;

 private:
  static int count_bits(std::span<const std::uint32_t> mask) {
    int n = 0;
    for (const std::uint32_t word : mask)
      n += std::popcount(word);
    return n;
  }

  void list_columns(int first, int last) {
    // Words of a mask beyond the capacity of the cache have no bits set.
    const std::size_t words = (std::min)(static_cast<std::size_t>(sequence_->mask_words), bits_.size());
    std::fill_n(bits_.begin(), words, 0U);
    for (int row = first; row < last; ++row) {
      const auto mask = batch_->mask_of(*sequence_, row);
      for (std::size_t w = 0; w < words; ++w)
        bits_[w] |= mask[w];
    }
    std::size_t n = 0;
    for (std::size_t w = 0; w < words; ++w) {
      before_[w] = static_cast<std::int32_t>(n);
      for (std::uint32_t rest = bits_[w]; rest != 0; rest &= rest - 1)
        columns_[n++] = static_cast<std::int32_t>(32 * w) + std::countr_zero(rest);
    }
    places = prefix + static_cast<int>(n);
  }

  const forward_batch_view* batch_ = nullptr;
  const batch_sequence* sequence_ = nullptr;
  int window_ = 0;
  std::vector<std::int32_t> columns_;  // slots behind the prefix that some row sees, counted from its end, ascending
  std::vector<std::int32_t> seen_;
  std::vector<std::uint32_t> bits_;   // [mask words] the bits of all rows' masks
  std::vector<std::int32_t> before_;  // [mask words] number of bits in the earlier words
};

}  // namespace espalier::detail
