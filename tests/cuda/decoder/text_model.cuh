// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"

// A model that is a function of the text, for host (text_backend) and device alike: each keeps its text in a cache, so
// that a row that sees a wrong slot gives other numbers.
namespace espalier_test {

// Logits of a token after a text: a part that all such models share, so that a draft is worth something, and one of its
// own.
struct text_model {
  std::uint32_t salt = 0;
  float own = 0.5F;                 // weight of what is the model's alone
  float sharpness = 6.0F;           // largest logit less the smallest
  std::int32_t n_tokens = 1 << 30;  // what a vocabulary has beyond these is padding
  bool is_masked = false;           // a grammar forbids half of the tokens after each text
  bool is_markov = false;           // the last token alone counts: what is most probable repeats before long

  static ESPALIER_HOST_DEVICE std::uint32_t mixed(std::uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352DU;
    x = (x ^ (x >> 15)) * 0x846CA68BU;
    return x ^ (x >> 16);
  }
  static ESPALIER_HOST_DEVICE std::uint32_t extended(std::uint32_t text, espalier::token_id token) {
    return mixed(text * 31U + static_cast<std::uint32_t>(token) + 1U);
  }
  ESPALIER_HOST_DEVICE std::uint32_t read(std::uint32_t text, espalier::token_id token) const {
    return extended(is_markov ? 17 : text, token);
  }
  static ESPALIER_HOST_DEVICE float unit(std::uint32_t x) {
    return static_cast<float>(mixed(x) >> 8) * (1.0F / 16777216.0F);
  }
  ESPALIER_HOST_DEVICE float logit(std::uint32_t text, espalier::token_id token) const {
    const bool is_forbidden = is_masked && ((text ^ static_cast<std::uint32_t>(token)) & 1U) != 0;
    if (is_forbidden || token >= n_tokens) return -INFINITY;
    const std::uint32_t key = text + 977U * static_cast<std::uint32_t>(token);
    const float shared = unit(key) * (1 - own);
    const float alone = unit(key ^ (salt + 0x9E3779B9U)) * own;
    return sharpness * (shared + alone);
  }

  // As text_backend wants it.
  void operator()(std::span<const espalier::token_id> text, std::span<float> logits) const {
    std::uint32_t state = 17;
    for (const espalier::token_id token : text)
      state = read(state, token);
    for (std::size_t t = 0; t < logits.size(); ++t)
      logits[t] = logit(state, static_cast<espalier::token_id>(t));
  }
};

namespace detail {

template <class UnusedT = void>
ESPALIER_KERNEL void keep_tokens(espalier::cuda::forward_batch_view batch, espalier::cuda::kv_view<float> kv) {
  const auto row = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= batch.n_rows || batch.sequence_of[row] < 0) return;
  const std::int32_t sequence = batch.sequences[batch.sequence_of[row]].sequence;
  *kv.key(0, sequence, batch.slots[row]) = static_cast<float>(batch.tokens[row]);
  *kv.value(0, sequence, batch.slots[row]) = -static_cast<float>(batch.tokens[row]);
}

// A block an output.
template <class UnusedT = void>
ESPALIER_KERNEL void read_text(text_model model, espalier::cuda::forward_batch_view batch,
                               espalier::cuda::kv_view<float> kv, std::int32_t vocab, float* logits) {
  const auto output = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t row = batch.outputs == nullptr ? output : batch.outputs[output];
  if (row < 0 || batch.sequence_of[row] < 0) return;
  const espalier::batch_sequence s = batch.sequences[batch.sequence_of[row]];
  std::uint32_t state = 17;
  const auto read = [&](std::int32_t slot) {
    const float token = *kv.key(0, s.sequence, slot);
    if (token != -*kv.value(0, s.sequence, slot)) state = 0;
    state = model.read(state, static_cast<espalier::token_id>(token));
  };
  for (std::int32_t i = 0; i < s.prefix; ++i)
    read(i);
  const std::uint32_t* mask = batch.mask + s.mask_begin + (row - s.row_begin) * s.mask_words;
  for (std::int32_t j = 0; j < s.mask_words * 32; ++j) {
    if ((mask[j / 32] >> (j % 32) & 1U) != 0) read(s.prefix + j);
  }
  for (auto t = static_cast<std::int32_t>(threadIdx.x); t < vocab; t += static_cast<std::int32_t>(blockDim.x))
    logits[static_cast<std::ptrdiff_t>(output) * vocab + t] = model.logit(state, t);
}

}  // namespace detail

// The model as a backend on the device. Rows of padding keep the numbers of an earlier pass, or NaN.
class device_text_backend {
 public:
  using number = float;

  device_text_backend(std::int32_t vocab, text_model model, std::int32_t max_rows, std::int32_t max_positions = 1 << 20)
      : vocab_(vocab),
        model_(model),
        max_rows_(max_rows),
        max_positions_(max_positions),
        logits_(static_cast<std::size_t>(vocab) * static_cast<std::size_t>(max_rows)) {
    logits_.fill_bytes(0xFF, nullptr);
    espalier::cuda::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  std::int32_t vocab_size() const { return vocab_; }
  std::int32_t max_rows() const { return max_rows_; }
  std::int32_t max_positions() const { return max_positions_; }

  template <class KVStoreT>
  espalier::vocab_rows<float> forward(KVStoreT& kv, const espalier::cuda::forward_batch_view& batch,
                                      cudaStream_t stream) {
    const espalier::cuda::kv_view<float> cache = kv.view();
    espalier::cuda::launch("keep_tokens", detail::keep_tokens<>,
                           {.grid = static_cast<unsigned>(batch.n_rows + 63) / 64, .threads = 64}, stream, batch,
                           cache);
    const std::int32_t n = batch.n_outputs;
    if (n > 0)
      espalier::cuda::launch("read_text", detail::read_text<>, {.grid = static_cast<unsigned>(n), .threads = 32},
                             stream, model_, batch, cache, vocab_, logits_.data());
    return {logits_.data(), n, vocab_};
  }

 private:
  std::int32_t vocab_;
  text_model model_;
  std::int32_t max_rows_;
  std::int32_t max_positions_;
  espalier::cuda::device_array<float> logits_;
};

}  // namespace espalier_test
