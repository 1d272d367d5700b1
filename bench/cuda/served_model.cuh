// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/model/llama/llama_backend.cuh"

namespace bench {

//! A model of a folder in bfloat16, with a cache that has a sequence for each text, and room for a tree behind the
//! last position.
struct served_model {
  espalier::cuda::llama_backend<__nv_bfloat16> backend;
  espalier::cuda::contiguous_kv<__nv_bfloat16> kv;

  explicit served_model(const std::string& folder, const std::vector<int>& hidden_layers = {},
                        std::int32_t max_rows = 257, std::int32_t max_texts = 1)
      : backend(espalier::cuda::llama_backend<__nv_bfloat16>::load(
            folder, {.max_rows = max_rows, .hidden_layers = hidden_layers, .batch_invariant = true})),
        kv(backend.config().n_layers, backend.config().kv_size(), max_texts, backend.max_positions() + max_rows - 1) {}
};

}  // namespace bench
