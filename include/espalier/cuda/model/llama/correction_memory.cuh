// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/drafter/block_diffusion.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text_batch.cuh"

namespace espalier::cuda::detail {

// The memory in which the rows of one drafter's blocks are corrected by path.
template <class NumberT, class LogitT>
struct correction_memory {
  device_array<NumberT> vectors;  // [max_texts][max_nodes][rank] of a Markov head or a refiner
  device_array<LogitT> logits;    // [max_texts][max_nodes][columns]
  // The arrays that a refiner alone has:
  device_array<NumberT> embeddings;          // [max_texts][max_nodes][rows of a block][rank]
  device_array<float> of_tokens;             // likewise: their products
  device_array<NumberT> widened, activated;  // [max_texts][max_nodes][2 * refiner_inner], [..][..][refiner_inner]
};

// Copies, for each node of the lists, the row of a block at the node's depth: block (i, lane) works for entry i of a
// lane. Nodes below the last row have the last row.
//
// Shapes: block [lanes][length][columns]; to [lanes][nodes.n][columns]
template <class LogitT>
ESPALIER_KERNEL void copy_rows_of_nodes(text_batch texts, node_list nodes, const LogitT* block, std::int32_t length,
                                        LogitT* to, std::int32_t columns) {
  const text_in_batch here = texts.here();
  const auto entry = static_cast<std::int32_t>(blockIdx.x);
  const node_id node = here.place < 0 ? no_node : nodes.of(here.place)[entry];
  const std::int32_t depth = node == no_node ? 0 : here.tree.depth[node];
  const std::int64_t row = here.lane * length + (depth < length ? depth : length - 1);
  const LogitT* from = block + row * columns;
  to += (std::int64_t{here.lane} * nodes.n + entry) * columns;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < columns; i += static_cast<std::int32_t>(blockDim.x))
    to[i] = from[i];
}

}  // namespace espalier::cuda::detail
