// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"

namespace espalier::cuda::detail {

inline constexpr int pass_warps = 16;
inline constexpr int pass_threads = 32 * pass_warps;
inline constexpr int pass_tile_rows = 16;  // rows of a tile; one warp loads each row, and stores its sums
inline constexpr int pass_chunk = 32;      // inputs that four lanes load at once: 16 bytes a lane
inline constexpr int pass_parts = 4;       // parts of a product's inputs; their sums are added in order
inline constexpr int pass_max_units = 16;  // units of a tile, at most
inline constexpr int pass_max_layers = 32;
inline constexpr std::size_t pass_weight_bytes = 96 * 1024;  // bytes of a tile's weights, at most

// One product of the pass. Its outputs are divided into units of eight: the four outputs from first_output(unit) on,
// and the four from first_output(unit) + distance on. So one thread gets both outputs of a pair that belongs together:
// a pair that is rotated, or gate and up. `per` units begin 4 outputs apart; each such run of units begins `span`
// outputs after the one before it. For heads, per, span and distance are dim / 8, dim and dim / 2.
//
// A block multiplies a group of 16 rows by a tile of tile_units units at a time.
struct pass_product {
  std::int32_t units = 0;
  std::int32_t inputs = 0;
  std::int32_t per = 1;
  std::int32_t span = 8;
  std::int32_t distance = 4;
  // Block b works on tiles b % tile_blocks, b % tile_blocks + tile_blocks, ..., and on groups b / tile_blocks,
  // b / tile_blocks + group_blocks, ....
  std::int32_t tile_units = 1;
  std::int32_t n_tiles = 0;
  std::int32_t tile_blocks = 1;
  std::int32_t group_blocks = 1;

  ESPALIER_HOST_DEVICE std::int32_t n_chunks() const { return (inputs + pass_chunk - 1) / pass_chunk; }
  __device__ std::int32_t first_output(std::int32_t unit) const { return unit / per * span + unit % per * 4; }
  __device__ std::int32_t units_of(std::int32_t tile) const {
    const std::int32_t left = units - tile * tile_units;
    return left < tile_units ? left : tile_units;
  }
};

// The weights of a layer.
//
// Shapes: norms [hidden]; matrices as in model_weights; keep [rows][hidden] or null
template <class NumberT>
struct pass_layer {
  const float* attention_norm = nullptr;
  const float* mlp_norm = nullptr;
  const NumberT* query_key_value = nullptr;
  const NumberT* attention_out = nullptr;
  const NumberT* gate_up = nullptr;
  const NumberT* down = nullptr;
  float* keep = nullptr;  // gets a copy of the stream after the layer, if not null
};

// The arguments of a pass, except the cache and the batch.
//
// Shapes: embedding [vocab][hidden]; head [columns][hidden]; cosine, sine [max_positions][head_dim / 2]; stream
// [rows][hidden]; queries [rows][n_heads head_dim], with query_stride numbers from one row to the next; attended
// [rows][n_heads head_dim]; activated [rows][intermediate]; logits [n_outputs][columns]
template <class NumberT, class LogitT>
struct pass_job {
  pass_layer<NumberT> layers[pass_max_layers];
  const NumberT* embedding = nullptr;
  const float* final_norm = nullptr;
  const NumberT* head = nullptr;
  const float* cosine = nullptr;
  const float* sine = nullptr;
  float* stream = nullptr;
  NumberT* queries = nullptr;
  NumberT* attended = nullptr;
  NumberT* activated = nullptr;
  LogitT* logits = nullptr;
  unsigned* arrivals = nullptr;
  pass_product query_key_value_product, attention_out_product, gate_up_product, down_product, head_product;
  std::int32_t n_layers = 0;
  std::int32_t hidden = 0;
  std::int32_t n_heads = 0;
  std::int32_t n_kv_heads = 0;
  std::int32_t intermediate = 0;
  std::int32_t vocab = 0;
  std::int32_t columns = 0;        // of the logits
  std::int32_t max_positions = 0;  // a position outside 0 to max_positions - 1 gives NaN
  std::int32_t query_stride = 0;
  std::int32_t attention_rows = 1;  // rows whose attention, for one key-value head, a block computes together
  std::int32_t weight_bytes = 0;    // bytes of shared memory for a tile of weights
  float epsilon = 0;
};

// The data of a row of the batch that a thread block needs.
struct pass_row {
  std::int32_t sequence = -1;  // number of the row's sequence in the cache; -1: padding
  std::int32_t position = 0;
  std::int32_t cache_row = -1;  // row of a layer's cache to which the key is written, -1: none
  std::int32_t prefix = 0;
  std::int32_t straight = 0;  // number of leading keys of the row whose slots are 0, 1, ... without a gap
  std::int32_t seen = 0;      // number of keys that the row sees
  std::int32_t mask_begin = 0;
  std::int32_t mask_words = 0;
};

// The shared memory of a thread block.
struct pass_memory {
  pass_row* rows;         // [n_rows]
  std::int32_t* outputs;  // [n_outputs] the batch's row of each output, -1: none
  float* scale;           // [hidden] the scale of the norm before the next product
  unsigned char* weights;
  unsigned char* work;  // memory for a product or for attention

  ESPALIER_HOST_DEVICE static constexpr std::size_t whole(std::size_t bytes) { return (bytes + 15) / 16 * 16; }
  ESPALIER_HOST_DEVICE static constexpr std::size_t bytes_before_weights(std::int32_t n_rows, std::int32_t n_outputs,
                                                                         std::int32_t hidden) {
    return static_cast<std::size_t>(n_rows) * sizeof(pass_row) +
           whole(static_cast<std::size_t>(n_outputs) * sizeof(std::int32_t)) +
           whole(static_cast<std::size_t>(hidden) * sizeof(float));
  }

  __device__ pass_memory(unsigned char* begin, std::int32_t n_rows, std::int32_t n_outputs, std::int32_t hidden,
                         std::int32_t weight_bytes) {
    rows = reinterpret_cast<pass_row*>(begin);
    outputs = reinterpret_cast<std::int32_t*>(rows + n_rows);
    weights = begin + bytes_before_weights(n_rows, n_outputs, hidden);
    scale = reinterpret_cast<float*>(weights - whole(static_cast<std::size_t>(hidden) * sizeof(float)));
    work = weights + weight_bytes;
  }
};

// Fills memory.rows and memory.outputs; a thread works for each row and each output. There is no barrier at the end.
template <class NumberT>
__device__ void read_rows(const pass_memory& memory, const kv_view<NumberT>& kv, const forward_batch_view& batch) {
  for (auto r = static_cast<std::int32_t>(threadIdx.x); r < batch.n_rows; r += pass_threads) {
    pass_row row;
    const std::int32_t s = batch.sequence_of[r];
    if (s >= 0) {
      const batch_sequence q = batch.sequences[s];
      const std::int32_t slot = batch.slots[r];
      row.sequence = q.sequence;
      row.position = batch.positions[r];
      row.prefix = q.prefix;
      row.mask_begin = q.mask_begin + (r - q.row_begin) * q.mask_words;
      row.mask_words = q.mask_words;
      if (slot >= 0) row.cache_row = static_cast<std::int32_t>(kv.row(q.sequence, slot));
      std::int32_t seen = 0, straight = 0;
      for (std::int32_t w = 0; w < q.mask_words; ++w) {
        const std::uint32_t word = batch.mask[row.mask_begin + w];
        if (straight == 32 * w) straight += ~word == 0 ? 32 : __ffs(static_cast<int>(~word)) - 1;
        seen += __popc(word);
      }
      row.straight = q.prefix + straight;
      row.seen = q.prefix + seen;
    }
    memory.rows[r] = row;
  }
  for (auto o = static_cast<std::int32_t>(threadIdx.x); o < batch.n_outputs; o += pass_threads)
    memory.outputs[o] = batch.outputs != nullptr ? batch.outputs[o] : o;
}

}  // namespace espalier::cuda::detail
