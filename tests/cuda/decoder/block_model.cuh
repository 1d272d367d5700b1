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
ESPALIER_KERNEL void draft_block(text_model model, espalier::cuda::text_view text, std::int32_t vocab, float* logits) {
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
      : vocab_(vocab), length_(length), model_(model), logits_(static_cast<std::size_t>(vocab * length)) {}

  void reserve(std::int32_t, espalier::cuda::text_view text, espalier::cuda::fault* found) {
    text_ = text;
    found_ = found;
  }
  void begin(std::span<const espalier::token_id>, std::int32_t, cudaStream_t) {}
  void ensure(std::int32_t, std::int32_t, cudaStream_t) {}
  void commit(espalier::tree_writer, espalier::cuda::path_view, cudaStream_t) {}
  std::int32_t capacity() const { return 1 << 20; }
  std::int32_t vocab_size() const { return vocab_; }
  std::int32_t block_length() const { return length_; }
  espalier::cuda::fault* found() const { return found_; }

  espalier::vocab_rows<float> propose_block(cudaStream_t stream) {
    espalier::cuda::launch("draft_block", detail::draft_block<>,
                           {.grid = static_cast<unsigned>(length_), .threads = 32}, stream, model_, text_, vocab_,
                           logits_.data());
    return {logits_.data(), length_, vocab_};
  }

 private:
  std::int32_t vocab_;
  std::int32_t length_;
  text_model model_;
  espalier::cuda::text_view text_;
  espalier::cuda::fault* found_ = nullptr;
  espalier::cuda::device_array<float> logits_;
};

static_assert(espalier::cuda::BlockDrafter<device_block_drafter>);

}  // namespace espalier_test
