// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/attention/tree_attention.cu
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"

namespace espalier::cuda {

//! The sizes for which attention is made: the model's heads and the largest batch.
struct attention_shape {
  std::int32_t n_heads = 1;
  std::int32_t n_kv_heads = 1;    //!< divides n_heads; n_heads / n_kv_heads query heads share keys and values
  std::int32_t head_dim = 64;     //!< up to 256
  std::int32_t max_rows = 1;      //!< rows of a batch, padding included
  std::int32_t max_context = 1;   //!< slots of a sequence
  std::int32_t query_stride = 0;  //!< numbers from one row of queries to the next; 0: n_heads * head_dim
  bool batch_invariant = false;   //!< a row's keys are summed in the order of positions: see the law of tree_attention

  //! Returns max_context for a backend whose option max_context is `wanted`: `wanted` itself, or, if that is 0, the
  //! number of positions and 1025 more, for a root and 1024 drafted nodes.
  static std::int32_t context(std::int32_t wanted, std::int32_t positions) {
    return wanted > 0 ? wanted : positions + 1025;
  }
};

//! How the scores of one layer become weights.
struct attention_scores {
  float scale = 1.0F;       //!< factor of the scores; > 0
  float cap = 0.0F;         //!< scaled scores become cap * tanh(score / cap); 0: they stay
  std::int32_t window = 0;  //!< tokens that a row sees, itself included, counted along its path; 0: all
  //! [n_rows] on the device: the window of each row, at least 1, if they differ; null: all rows have `window`.
  const std::int32_t* windows = nullptr;
  //! [n_heads] on the device: a number that counts as the score of one more token, without a value; null: none.
  const float* sinks = nullptr;
};

}  // namespace espalier::cuda

namespace espalier::cuda::detail {

//! The result of a split for one row and head: the greatest score, and the sum of the weights; a weight is the
//! exponential of (score - greatest score). If the row saw nothing in the split, they are minus infinity and 0, and
//! attention_arguments::parts has no numbers for the split.
struct part_score {
  float most;
  float total;
};

//! The arguments of the kernels of attention, which get them by value.
//!
//! Shapes      queries [n_rows], with query_stride numbers from one row to the next; out [n_rows][n_heads][head_dim];
//!             parts [n_splits][n_rows][n_heads][head_dim]: weighted sums of values; part_scores
//!             [n_splits][n_rows][n_heads]; whole_blocks [n_rows][n_heads]
template <class NumberT>
struct attention_arguments {
  const NumberT* queries;
  kv_view<NumberT> kv;  // its data begin at this layer
  forward_batch_view batch;
  NumberT* out;
  float* parts;
  part_score* part_scores;
  std::int32_t* whole_blocks;  // if by_position: how many of a row's blocks of 64 keys, counted from its first block,
                               // a kernel for tiles of rows has summed; nullptr: none
  float exponent_scale;        // scores times this are exponents of 2
  float cap;                   // scores become cap * tanh(score * cap_scale) first; 0: they stay
  float cap_scale;
  std::int32_t window;          // how many keys, counted from its last one, a row sees; 0: all
  const std::int32_t* windows;  // [n_rows] that of each row, in place of `window`; nullptr: all have `window`
  const float* sinks;           // [n_heads] scores of one more key without a value; nullptr: none
  std::int32_t query_stride;
  std::int32_t n_heads;
  std::int32_t group;  // query heads that share keys and values
  std::int32_t head_dim;
  std::int32_t n_splits;
  std::int32_t n_stages;    // blocks of keys and values in shared memory: 1 or 2
  std::int32_t seen_words;  // words of a mask that may have bits set; even
  bool by_position;         // whether the split of a key follows from its position among the keys that the row sees
};

//! Largest number of columns of a mask. Each column is a slot after the prefix.
inline constexpr std::int32_t max_mask_columns = 32768;

//! Number of splits of attention by position: block b of 64 keys belongs to split b % position_splits.
inline constexpr std::int32_t position_splits = 8;

//! Returns the factor that makes a mean of a row's sum of weighted values. A weight is the exponential of a score less
//! `most`, and `total` is the sum of all weights but the sink's.
//!
//! Pre         row_and_head is row * n_heads + head
template <class NumberT>
__device__ inline float mean_factor(const attention_arguments<NumberT>& a, std::int64_t row_and_head, float most,
                                    float total) {
  if (total == 0.0F) return 0.0F;
  if (a.sinks == nullptr) return 1.0F / total;
  return 1.0F / (total + exp2f(a.sinks[row_and_head % a.n_heads] * 1.44269504F - most * a.exponent_scale));
}

//! Returns the first unit of work of split number `split`. Pre: n_units < 2^26.
__device__ inline std::int32_t split_begin(std::int32_t n_units, std::int32_t split, std::int32_t n_splits) {
  return n_units * split / n_splits;
}

}  // namespace espalier::cuda::detail
