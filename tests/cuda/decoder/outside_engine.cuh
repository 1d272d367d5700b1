// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cuda/decoder/text_model.cuh"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/stream.cuh"
#include "espalier/cuda/decoder/outside_pass.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"

#if __has_include("emulator/api.hpp")
#include "emulator/api.hpp"
#define ESPALIER_TEST_EMULATES
#endif

// What makes the passes of decoders on the device outside them.
namespace espalier_test {

// An engine with kernels and a stream of its own. It makes a pass there, after what the decoder's stream has so far,
// and lets the decoder's stream wait for it; or it makes the pass in the decoder's stream.
struct outside_engine {
  device_text_backend target;
  bool has_own_stream = true;
  std::int32_t passes = 0;
  std::int32_t largest = 0;      // rows of the largest pass
  std::int32_t prompt_rows = 0;  // of passes that read prompts alone

  explicit outside_engine(device_text_backend its_target) : target(std::move(its_target)) {
    espalier::cuda::require(cudaEventCreate(&point_), "cudaEventCreate");
  }
  outside_engine(const outside_engine&) = delete;
  ~outside_engine() { (void)cudaEventDestroy(point_); }

  template <class KVStoreT>
  espalier::vocab_rows<float> compute(KVStoreT& kv, const espalier::cuda::outside_pass& pass) {
    ++passes;
    largest = (std::max)(largest, pass.batch.n_rows);
    if (pass.batch.n_outputs == 0) prompt_rows += pass.batch.n_rows;
    if (!has_own_stream) return target.forward(kv, pass.batch, pass.stream);
    let_wait(own_.get(), pass.stream);
    const auto logits = target.forward(kv, pass.batch, own_.get());
    let_wait(pass.stream, own_.get());
    return logits;
  }

 private:
  // Lets a stream wait for what another one has so far.
  void let_wait(cudaStream_t stream, cudaStream_t other) {
    espalier::cuda::require(cudaEventRecord(point_, other), "cudaEventRecord");
    espalier::cuda::require(cudaStreamWaitEvent(stream, point_, 0), "cudaStreamWaitEvent");
  }

  espalier::cuda::stream own_;
  cudaEvent_t point_{};
};

// Lets the streams of the emulated device run late, or not. On a real one they run when they like.
inline void run_late([[maybe_unused]] bool late) {
#ifdef ESPALIER_TEST_EMULATES
  emulator::late() = late;
#endif
}

inline constexpr std::int32_t vocab = 37;

inline std::vector<espalier::token_id> prompt_of(std::size_t n) {
  std::vector<espalier::token_id> prompt;
  for (std::size_t i = 0; i < n; ++i)
    prompt.push_back(static_cast<espalier::token_id>((i * i + 3) % vocab));
  return prompt;
}

// An engine with a target, a draft model, and the caches of both.
template <class KVStoreT>
struct outside_parts {
  outside_engine engine;
  device_text_backend draft;
  KVStoreT kv, draft_kv;

  outside_parts(std::int32_t max_rows, KVStoreT its_kv, KVStoreT its_draft_kv)
      : engine({vocab, text_model{.salt = 1}, max_rows}),
        draft(vocab, text_model{.salt = 2}, max_rows),
        kv(std::move(its_kv)),
        draft_kv(std::move(its_draft_kv)) {}

  auto drafter() { return espalier::cuda::autoregressive(draft, draft_kv, {.temperature = 1}); }
};

}  // namespace espalier_test
