// SPDX-License-Identifier: BSL-1.0
// A model of PyTorch as target and another as draft, through LibTorch: the batch, its masks and the cache are tensors
// over the library's memory. Writes one text by plain decoding and by a tree of drafts, and compares them.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include "espalier/cuda/backend/callable.cuh"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/drafter/no_drafter.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "espalier/cuda/tree_policy/plain.cuh"
#include "espalier/verifier/greedy.hpp"
#include "torch_forward.cuh"

namespace {

namespace device = espalier::cuda;
using espalier::token_id;

constexpr int max_positions = 512;

// A model with its cache, which has one slot more than a text can reach.
struct torch_model {
  device::callable_backend<float, torch_forward> backend;
  device::contiguous_kv<float> kv;

  torch_model(at::Device on, int n_layers)
      : backend(
            {.vocab_size = static_cast<int>(tiny_transformer::vocab), .max_rows = 257, .max_positions = max_positions},
            torch_forward(tiny_transformer(on, n_layers, max_positions), on)),
        kv(n_layers, static_cast<int>(tiny_transformer::hidden), 1, max_positions + 1) {
    // Attention multiplies what it does not see by zero: it must be a number.
    const auto view = kv.view();
    device::require(cudaMemset(view.data, 0,
                               sizeof(float) * 2 * static_cast<std::size_t>(n_layers * view.page_size * view.row_size)),
                    "cudaMemset");
  }
};

template <class DrafterT, class PolicyT>
std::vector<token_id> written(DrafterT&& drafter, PolicyT policy, torch_model& target,
                              std::span<const token_id> prompt) {
  // PyTorch's allocator does not like to be captured: each round is enqueued anew.
  auto decode = device::make_decoder(std::forward<DrafterT>(drafter), std::move(policy), espalier::greedy(), target.kv,
                                     target.backend, {.text = {.sampling = {.temperature = 0.0F}}}, false);
  int rounds = 0;
  const auto text = decode.generate(prompt, {.max_tokens = 128}, [&](const espalier::round_record&) { ++rounds; });
  std::printf("%zu tokens in %d rounds\n", text.size(), rounds);
  return {text.begin(), text.end()};
}

}  // namespace

int main() {
  try {
    if (!at::hasCUDA()) {
      std::printf("SKIPPED: PyTorch finds no GPU.\n");
      return 77;
    }
    const at::Device on(at::kCUDA, 0);
    torch_model target(on, 3), draft(on, 1);
    const std::vector<token_id> prompt{1, 17, 42, 99, 7, 300, 255, 64};
    std::printf("plain decoding: ");
    const auto plain = written(device::no_drafter(), device::plain(), target, prompt);
    std::printf("a tree of drafts: ");
    const auto tree = written(device::autoregressive(draft.backend, draft.kv), device::dynatree(), target, prompt);
    if (plain == tree) {
      std::printf("The texts are the same.\n");
      return 0;
    }
    // PyTorch's sums depend on the number of rows: where two tokens are nearly as probable, either may come first.
    const auto first = std::mismatch(plain.begin(), plain.end(), tree.begin(), tree.end()).first - plain.begin();
    std::printf("The texts are the same up to token %td.\n", first);
    return first > 0 ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
