// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/decoder.cpp
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! A backend made of a plain function of the text: model(text, logits) writes the logits of the token after `text`. It
//! is for n-gram models, lookup tables, remote models without a cache, and tests. The text is kept in the store, a
//! token_kv. The logits are float, or double if the function does not take float.
//!
//! Shapes      text: one to capacity tokens; logits [vocab_size]
//! Complexity  one call of the function for each output row
//! Errors      constructor: option_error for a vocabulary size out of range. forward: the function's own
template <class ModelT>
requires std::invocable<ModelT&, std::span<const token_id>, std::span<float>> ||
    std::invocable<ModelT&, std::span<const token_id>, std::span<double>>
class text_backend {
  using number =
      std::conditional_t<std::invocable<ModelT&, std::span<const token_id>, std::span<float>>, float, double>;

 public:
  text_backend(std::int32_t vocab_size, ModelT model) : vocab_size_(vocab_size), model_(std::move(model)) {
    require_option("vocabulary size", vocab_size, 1, 1 << 30);
  }

  std::int32_t vocab_size() const { return vocab_size_; }

  template <class KVStoreT>
  requires requires(KVStoreT& kv, std::int32_t i) {
    kv.token(i, i) = token_id{};
    kv.capacity();
  }
  vocab_rows<number> forward(KVStoreT& kv, forward_batch_view batch) {
    const auto vocab = static_cast<std::size_t>(vocab_size_);
    logits_.resize(batch.outputs.size() * vocab);
    text_.reserve(static_cast<std::size_t>(kv.capacity()));
    std::size_t output = 0;
    for (const batch_sequence& s : batch.sequences) {
      for (std::int32_t r = s.row_begin; r < s.row_end; ++r) {
        kv.token(s.sequence, batch.slots[static_cast<std::size_t>(r)]) = batch.tokens[static_cast<std::size_t>(r)];
      }
      for (; output < batch.outputs.size() && batch.outputs[output] < s.row_end; ++output) {
        text_.clear();
        for (std::int32_t i = 0; i < s.prefix; ++i)
          text_.push_back(kv.token(s.sequence, i));
        const auto mask = batch.mask_of(s, batch.outputs[output]);
        for (std::int32_t j = 0; j < s.mask_words * 32; ++j) {
          if ((mask[static_cast<std::size_t>(j / 32)] >> (j % 32) & 1U) != 0)
            text_.push_back(kv.token(s.sequence, s.prefix + j));
        }
        model_(std::span<const token_id>(text_), std::span<number>(logits_).subspan(output * vocab, vocab));
      }
    }
    return {logits_.data(), static_cast<std::int32_t>(batch.outputs.size()), vocab_size_};
  }

 private:
  std::int32_t vocab_size_;
  ModelT model_;
  detail::list<token_id> text_;
  detail::list<number> logits_;
};

}  // namespace espalier
