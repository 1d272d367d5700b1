// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <span>

#include "cuda/decoder/text_model.cuh"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"

// A BlockDrafter on the device whose marginals are a function of the text and the place, as marginal_drafter's on the
// host.
namespace espalier_test {

namespace detail {

template <class UnusedT = void>
ESPALIER_KERNEL void draft_block(text_model model, espalier::cuda::text_batch texts, std::int32_t vocab,
                                 float* logits) {
  const espalier::cuda::text_in_batch here = texts.here();
  if (here.place < 0) return;
  const espalier::cuda::text_view text = here.text;
  logits += static_cast<std::ptrdiff_t>(here.lane) * gridDim.x * vocab;
  std::uint32_t state = 17;
  for (std::int32_t i = 0; i < text.state->size; ++i)
    state = text_model::extended(state, text.tokens[i]);
  const auto place = static_cast<std::int32_t>(blockIdx.x);
  state = text_model::extended(state, -place);
  for (auto t = static_cast<std::int32_t>(threadIdx.x); t < vocab; t += static_cast<std::int32_t>(blockDim.x))
    logits[static_cast<std::ptrdiff_t>(place) * vocab + t] = model.logit(state, t);
}

}  // namespace detail

// The host's twin of a row.
inline std::vector<float> block_logits(const text_model& model, std::int32_t vocab, std::span<const std::int32_t> text,
                                       std::int32_t place) {
  std::vector<std::int32_t> read(text.begin(), text.end());
  read.push_back(-place);
  std::vector<float> logits(static_cast<std::size_t>(vocab));
  model(read, logits);
  return logits;
}

class device_block_drafter {
 public:
  device_block_drafter(std::int32_t vocab, std::int32_t length, text_model model)
      : vocab_(vocab), length_(length), model_(model) {}

  void reserve(std::int32_t, std::int32_t max_texts, espalier::cuda::fault* found) {
    logits_ = espalier::cuda::device_array<float>(static_cast<std::size_t>(max_texts * vocab_ * length_));
    found_ = found;
  }
  void begin(std::int32_t, espalier::cuda::text_view, std::span<const espalier::token_id>, std::int32_t, cudaStream_t) {
  }
  void ensure(std::int32_t, std::int32_t, cudaStream_t) {}
  void commit(const espalier::cuda::text_batch&, espalier::cuda::path_view, cudaStream_t) {}
  std::int32_t capacity() const { return 1 << 20; }
  std::int32_t vocab_size() const { return vocab_; }
  std::int32_t block_length() const { return length_; }
  espalier::cuda::fault* found() const { return found_; }

  espalier::vocab_rows<float> propose_block(const espalier::cuda::text_batch& texts, cudaStream_t stream) {
    espalier::cuda::launch("draft_block", detail::draft_block<>, {.grid = texts.lanes(length_), .threads = 32}, stream,
                           model_, texts, vocab_, logits_.data());
    return {logits_.data(), texts.n * length_, vocab_};
  }

 private:
  std::int32_t vocab_;
  std::int32_t length_;
  text_model model_;
  espalier::cuda::fault* found_ = nullptr;
  espalier::cuda::device_array<float> logits_;
};

static_assert(espalier::cuda::BlockDrafter<device_block_drafter>);

}  // namespace espalier_test
