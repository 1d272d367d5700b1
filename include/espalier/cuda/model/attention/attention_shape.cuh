// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/attention/tree_attention.cu
#pragma once

#include <cstdint>

namespace espalier::cuda {

//! The sizes for which attention is made: the model's heads and the largest batch.
struct attention_shape {
  std::int32_t n_heads = 1;
  std::int32_t n_kv_heads = 1;    //!< divides n_heads; n_heads / n_kv_heads query heads share keys and values
  std::int32_t head_dim = 64;     //!< up to 256
  std::int32_t max_rows = 1;      //!< rows of a batch, padding included
  std::int32_t max_context = 1;   //!< slots of a sequence
  std::int32_t query_stride = 0;  //!< numbers from one row of queries to the next; 0: n_heads * head_dim
  bool batch_invariant = false;   //!< sums depend on positions alone: see the law of tree_attention

  //! Number of slots of a sequence for a backend's option max_context: `wanted`, or if that is 0 the number of
  //! positions and room for a tree of 1024 nodes with its root.
  static std::int32_t context(std::int32_t wanted, std::int32_t positions) {
    return wanted > 0 ? wanted : positions + 1025;
  }
};

//! How the scores of one layer become weights.
struct attention_scores {
  float scale = 1.0F;       //!< factor of the scores; > 0
  float cap = 0.0F;         //!< scaled scores become cap * tanh(score / cap); 0: they stay
  std::int32_t window = 0;  //!< tokens that a row sees, itself included, counted along its path; 0: all
};

}  // namespace espalier::cuda
