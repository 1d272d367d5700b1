// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

namespace espalier::cuda {

//! What attention is computed over: the model's heads and the largest batch.
struct attention_shape {
  std::int32_t n_heads = 1;
  std::int32_t n_kv_heads = 1;    //!< divides n_heads: that many query heads share keys and values
  std::int32_t head_dim = 64;     //!< up to 256
  std::int32_t max_rows = 1;      //!< rows of a batch, padding included
  std::int32_t max_context = 1;   //!< slots of a sequence
  std::int32_t query_stride = 0;  //!< numbers from one row of queries to the next; 0: n_heads * head_dim
  bool batch_invariant = false;   //!< sums go by positions alone: see the law of tree_attention

  //! How many slots of a sequence a backend is made for by its option max_context: `wanted`, or where that is 0 so many
  //! positions and a tree of 1024 with its root.
  static std::int32_t context(std::int32_t wanted, std::int32_t positions) {
    return wanted > 0 ? wanted : positions + 1025;
  }
};

}  // namespace espalier::cuda
