// SPDX-License-Identifier: BSL-1.0
// The same on a GPU: torch_on_device TARGET.pt [DRAFT.pt] < tokens, of files that export.py wrote with --device cuda.
// Without a draft, plain decoding.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/drafter/no_drafter.cuh"
#include "espalier/cuda/model/torch/torch_backend.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "espalier/cuda/tree_policy/plain.cuh"
#include "espalier/verifier/greedy.hpp"

namespace {

namespace device = espalier::cuda;

// A model with its cache.
struct torch_model {
  device::torch_backend backend;
  device::contiguous_kv<float> kv;

  explicit torch_model(const std::string& path)
      : backend(with_limit(espalier::torch_module::load(path, at::kCUDA))), kv(backend.cache()) {}

  static device::torch_backend with_limit(espalier::torch_module module) {
    const int positions = std::min(2048, module.shape().max_positions);
    return device::torch_backend(std::move(module), {.max_positions = positions});
  }
};

template <class DrafterT, class PolicyT>
void write(DrafterT&& drafter, PolicyT policy, torch_model& target, const std::vector<espalier::token_id>& prompt) {
  // PyTorch's allocator does not allow rounds to be captured, so each round is enqueued anew.
  auto decode = device::make_decoder(std::forward<DrafterT>(drafter), std::move(policy), espalier::greedy(), target.kv,
                                     target.backend, {.text = {.sampling = {.temperature = 0.0F}}, .replay = false});
  for (const espalier::token_id t : decode.generate(prompt, {.max_tokens = 128}))
    std::printf("%d ", t);
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: %s TARGET.pt [DRAFT.pt] < tokens\n", argv[0]);
    return 2;
  }
  try {
    const std::vector<espalier::token_id> prompt(std::istream_iterator<espalier::token_id>(std::cin), {});
    if (!std::cin.eof())
      espalier::raise<espalier::input_error>("the prompt has something that is no token after ", prompt.size(),
                                             " tokens.");
    torch_model target(argv[1]);
    if (argc == 3) {
      torch_model draft(argv[2]);
      write(device::autoregressive(draft.backend, draft.kv), device::dynatree(), target, prompt);
    } else {
      write(device::no_drafter(), device::plain(), target, prompt);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
