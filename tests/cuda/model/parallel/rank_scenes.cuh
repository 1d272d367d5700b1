// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda/model/llama/llama_driver.cuh"
#include "cuda/model/llama/llama_scenes.cuh"
#include "espalier/core/forward_batch.hpp"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/model/llama/llama_backend.cuh"

//! Passes and texts that ranks make, and one device.
namespace rank_scenes {

using namespace espalier;
namespace gpu = espalier::cuda;
using llama_driver::device_batch;
using llama_driver::device_kv;
using llama_driver::device_rows;
using numbers_type = std::vector<float>;

inline const std::string models = ESPALIER_TEST_DATA "/../../examples/models/";

inline std::string path_of(const std::string& folder) {
  return ESPALIER_TEST_DATA "/golden/" + folder;
}

template <class BackendT>
int cache_row_of(const BackendT& backend) {
  if constexpr (requires { backend.cache_row(); }) return backend.cache_row();
  return backend.config().kv_size();
}

// Two texts that are committed, and then a chain of one and a tree of the other in one pass.
template <class BackendT>
numbers_type rows_of(BackendT& backend) {
  const int vocab = backend.vocab_size();
  device_kv<typename BackendT::weight_number> kv(backend.config().n_layers, cache_row_of(backend), 2, 48, 4);
  std::mt19937 random(17);
  for (const auto& [sequence, n] : {std::pair(0, 13), std::pair(1, 4)}) {
    forward_batch text;
    text.begin_sequence(sequence, 0, n);
    text.add_chain(llama_driver::random_tokens(random, n, vocab), 0, 0);
    backend.forward(kv, device_batch(text.view(), 3).view(), nullptr);
  }
  const forward_batch batch = llama_scenes::two_sequences(random, vocab, 4, 13);
  numbers_type all;
  for (const auto& row : device_rows(backend.forward(kv, device_batch(batch.view(), 2).view(), nullptr)))
    all.insert(all.end(), row.begin(), row.end());
  return all;
}

inline constexpr int context = 96;
inline const std::vector<token_id> prompt{5, 17, 3, 40};

// The text that a decoder with a draft of its own writes over the target.
template <class PolicyT, class VerifierT, class TargetT, class ObserverT>
numbers_type write_text(PolicyT&& policy, VerifierT verifier, TargetT& target, float temperature,
                        ObserverT&& observer) {
  auto draft = gpu::llama_backend<float>::load(path_of("llama_int8_rows"), {.max_rows = 40});
  gpu::contiguous_kv<float> kv(target.config().n_layers, cache_row_of(target), 1, context),
      draft_kv(draft.config().n_layers, draft.config().kv_size(), 1, context);
  auto decode = gpu::make_decoder(gpu::autoregressive(draft, draft_kv, {.temperature = temperature}), std::move(policy),
                                  std::move(verifier), kv, target,
                                  {.text = {.sampling = {.temperature = temperature}, .seed = 5}});
  const auto text = decode.generate(prompt, {.max_tokens = 30}, observer);
  return {text.begin(), text.end()};
}

}  // namespace rank_scenes
