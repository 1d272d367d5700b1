// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "espalier/core/error.hpp"
#include "espalier/model/llama/block_draft_config.hpp"
#include "espalier/model/llama/block_draft_context.hpp"
#include "espalier/model/llama/elementwise.hpp"
#include "espalier/model/llama/rotary_table.hpp"

namespace espalier::detail {

// The hidden states of a row of the target's last pass, [layers read][hidden_size].
template <class BackendT>
void gather_states(const block_draft_config& config, const BackendT& backend, std::int32_t row, float* to) {
  for (const int layer : config.hidden_layers) {
    const std::span<const float> state = backend.hidden(layer, row);
    if (state.size() != static_cast<std::size_t>(config.hidden_size)) {
      raise<input_error>("the target's hidden states have ", state.size(), " numbers, but the block draft reads ",
                         config.hidden_size, ".");
    }
    to = std::copy(state.begin(), state.end(), to);
  }
}

inline void rotate_queries(const block_draft_config& config, const rotary_table& rotary, float* x, int position) {
  for (int head = 0; head < config.n_heads; ++head, x += config.head_dim)
    rotate_head(x, config.head_dim, config.head_dim, rotary.cosine(position), rotary.sine(position),
                1.0F / std::sqrt(static_cast<float>(config.head_dim)), x);
}

// x: keys, then values, [2 kv_size]
inline void keep_key_value(const block_draft_config& config, const rotary_table& rotary, block_draft_context& context,
                           int layer, const float* x, int position) {
  float* key = context.kv.key(layer, 0, position);
  for (int first = 0; first < config.kv_size(); first += config.head_dim)
    rotate_head(x + first, config.head_dim, config.head_dim, rotary.cosine(position), rotary.sine(position), 1.0F,
                key + first);
  std::copy_n(x + config.kv_size(), config.kv_size(), context.kv.value(layer, 0, position));
}

}  // namespace espalier::detail
