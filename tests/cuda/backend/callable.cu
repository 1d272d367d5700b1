// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/backend/callable.cuh"

#include <cuda_fp16.h>

#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "cuda/model/llama/llama_driver.cuh"
#include "cuda/support.cuh"
#include "espalier/cuda/concepts/backend.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "raises.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::to_device;
using espalier_test::to_host;

namespace {

constexpr std::int32_t vocab = 5;

__global__ void follow(gpu::forward_batch_view batch, float* logits) {
  const auto row = static_cast<std::int32_t>(blockIdx.x);
  const float next = static_cast<float>((batch.tokens[row] + 1) % vocab);
  for (std::int32_t i = 0; i < vocab; ++i)
    logits[row * vocab + i] = static_cast<float>(i) == next ? 1.0F : 0.0F;
}

// The token after n is n + 1.
struct counting_model {
  float* logits;
  std::int32_t missing = 0;

  template <class KVStoreT>
  vocab_rows<float> operator()(KVStoreT&, const gpu::forward_batch_view& batch, cudaStream_t stream) const {
    gpu::launch("follow", follow, {.grid = static_cast<unsigned>(batch.n_rows)}, stream, batch, logits);
    return {logits, batch.n_outputs - missing, vocab};
  }
};

using backend_type = gpu::callable_backend<float, counting_model>;
static_assert(gpu::Backend<backend_type, llama_driver::device_kv<float>>);
static_assert(!gpu::Backend<gpu::callable_backend<__half, counting_model>, llama_driver::device_kv<float>>);

}  // namespace

TEST_CASE("A function object of one's own is a backend") {
  const gpu::device_array<float> logits(3 * vocab);
  auto backend = gpu::make_callable_backend<float>({.vocab_size = vocab, .max_rows = 3}, counting_model{logits.data()});
  CHECK(backend.vocab_size() == 5);
  CHECK(backend.max_rows() == 3);
  llama_driver::device_kv<float> kv(1, 1, 1, 4);
  const auto tokens = to_device(std::vector<token_id>{4, 2, 0});
  gpu::forward_batch_view batch;
  batch.n_rows = batch.n_outputs = 3;
  batch.tokens = tokens.data();
  const vocab_rows<float> rows = backend.forward(kv, batch, nullptr);
  CHECK(to_host(rows.data, 15) == std::vector<float>{1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0});
}

TEST_CASE("Rows that were not asked for are refused") {
  const gpu::device_array<float> logits(3 * vocab);
  backend_type backend({.vocab_size = vocab}, {logits.data(), 1});
  llama_driver::device_kv<float> kv(1, 1, 1, 4);
  const auto tokens = to_device(std::vector<token_id>{4, 2, 0});
  gpu::forward_batch_view batch;
  batch.n_rows = batch.n_outputs = 3;
  batch.tokens = tokens.data();
  CHECK(message_of<input_error>([&] { backend.forward(kv, batch, nullptr); }) ==
        "the backend returned 2 rows of 5 logits, but was asked for 3 rows of 5.");
  CHECK(message_of<option_error>([&] { backend_type({}, {logits.data()}); }) ==
        "option vocab_size is 0, but must lie between 1 and 1073741824.");
}
