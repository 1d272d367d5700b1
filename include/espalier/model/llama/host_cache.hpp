// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/kv_store/recurrent.hpp"
#include "espalier/model/llama/model_config.hpp"

namespace espalier {

//! A cache for any model of llama_backend, with recurrent layers or without: so many sequences of `capacity` tokens.
//!
//! Errors      option_error as recurrent_kv's
inline recurrent_kv host_cache(const model_config& config, int n_sequences, int capacity,
                               const recurrent_options& options = {}) {
  return {config.n_attention_layers(), config.kv_size(), config.recurrent_shape(), n_sequences, capacity, options};
}

}  // namespace espalier
