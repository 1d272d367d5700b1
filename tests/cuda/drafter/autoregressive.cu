// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/drafter/autoregressive.cuh"

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "catch.hpp"
#include "cuda/decoder/text_model.cuh"
#include "cuda/support.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/kv_store/recurrent.cuh"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::to_device;

namespace {

// A model that counts the rows of its passes.
struct counting_backend : espalier_test::device_text_backend {
  using device_text_backend::device_text_backend;

  template <class KVStoreT>
  vocab_rows<float> forward(KVStoreT& kv, const gpu::forward_batch_view& batch, cudaStream_t stream) {
    n_rows += batch.n_rows;
    return device_text_backend::forward(kv, batch, stream);
  }

  std::int32_t n_rows = 0;
};

// Number of rows that a drafter reads when a text has grown from 100 tokens to 104, and it has read the 100.
template <class KVStoreT>
std::int32_t rows_of_next_turn(KVStoreT kv) {
  counting_backend model(32, {}, 256);
  gpu::autoregressive drafter(model, kv);
  drafter.catch_up(1);
  drafter.reserve(8, 1, nullptr);
  std::vector<token_id> tokens(129);
  std::iota(tokens.begin(), tokens.end(), 0);
  for (token_id& t : tokens)
    t %= 32;
  const auto on_device = to_device(tokens);
  const auto state = to_device(std::vector<gpu::text_state>{{104, 128}});
  const gpu::text_view text{on_device.data(), state.data(), 128};
  drafter.begin(0, text, std::span(tokens).first(100), 0, nullptr);
  CHECK(model.n_rows >= 98);
  model.n_rows = 0;
  drafter.begin(0, text, std::span(tokens).first(104), 100, nullptr);
  return model.n_rows;
}

}  // namespace

TEST_CASE("A draft's cache reads a longer text again only if it keeps states") {
  const recurrent_shape states{.layers = 1, .state_size = 4, .row_size = 4, .reach = 1};
  const std::int32_t plain = rows_of_next_turn(gpu::contiguous_kv<float>(1, 1, 1, 128));
  CHECK(plain <= 4);
  CHECK(rows_of_next_turn(gpu::recurrent_kv<float>(1, 1, {}, 1, 128)) == plain);
  CHECK(rows_of_next_turn(gpu::recurrent_kv<float>(1, 1, states, 1, 128)) >= 102);
}
