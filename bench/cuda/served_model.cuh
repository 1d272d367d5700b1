// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/model/llama/llama_backend.cuh"
#include "espalier/model/files/head_tokens.hpp"
#include "espalier/model/llama/model_files.hpp"

namespace bench {

//! A model of a folder in bfloat16, with a cache that has a sequence for each text, and room for a tree behind the
//! last position. `tokens` is the file of the tokens that a draft drafts alone, or empty.
struct served_model {
  espalier::cuda::llama_backend<__nv_bfloat16> backend;
  espalier::cuda::contiguous_kv<__nv_bfloat16> kv;

  explicit served_model(const std::string& folder, const std::vector<int>& hidden_layers = {},
                        std::int32_t max_rows = 257, std::int32_t max_texts = 1, const std::string& tokens = {})
      : backend(espalier::cuda::llama_backend<__nv_bfloat16>::load(folder, {.max_rows = max_rows,
                                                                            .hidden_layers = hidden_layers,
                                                                            .head_tokens = listed(folder, tokens),
                                                                            .batch_invariant = true})),
        kv(backend.config().n_layers, backend.config().kv_size(), max_texts, backend.max_positions() + max_rows - 1) {}

 private:
  static std::vector<espalier::token_id> listed(const std::string& folder, const std::string& tokens) {
    if (tokens.empty()) return {};
    return espalier::read_head_tokens(tokens, espalier::model_files::open(folder).config.vocab_size);
  }
};

}  // namespace bench
