// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"

namespace espalier::cuda::detail {

// A probability and its token as one integer, unique in a row: the more probable and, among equals, the lower token is larger; 0
// for what has no probability.
__device__ inline unsigned long long key_of_token(float probability, std::size_t token) {
  if (!(probability > 0)) return 0;
  return static_cast<unsigned long long>(__float_as_uint(probability)) << 32 |
         (0xFFFFFFFFU - static_cast<unsigned>(token));
}

// A team an entry: the k most probable tokens of its node's row, the most probable first, ties by lower token, -1 for what is not
// there. Tokens of probability 0 are left out.
//
// Shapes      tokens [nodes.n][k]
template <class RowsT>
ESPALIER_KERNEL void find_children(RowsT rows, node_list nodes, std::int32_t k, token_id* tokens) {
  const std::size_t entry = blockIdx.x / cluster_blocks();
  const node_id u = nodes.nodes[entry];
  if (u == no_node) return;
  team::turns turns;
  const team who(*reinterpret_cast<team::memory*>(shared_memory()), turns);
  const auto vocab = static_cast<std::size_t>(rows.rows.vocab);
  const float* row = rows.rows.data + static_cast<std::ptrdiff_t>(rows.row_of[u]) * rows.rows.vocab;
  unsigned long long before = ~0ULL;
  for (std::int32_t rank = 0; rank < k; ++rank) {
    unsigned long long best = 0;
    for (std::size_t t = who.rank(); t < vocab && before != 0; t += who.size()) {
      const unsigned long long key = key_of_token(row[t], t);
      if (key < before && key > best) best = key;
    }
    before = who.reduce(best, [](unsigned long long a, unsigned long long b) { return a < b ? b : a; });
    if (who.rank() == 0)
      tokens[entry * static_cast<std::size_t>(k) + static_cast<std::size_t>(rank)] =
          before == 0 ? -1 : static_cast<token_id>(0xFFFFFFFFU - static_cast<unsigned>(before));
  }
}

// Enqueues the search for few tokens of each node's row: a pass over the row for each of the k, the first from memory, the others from
// the caches.
inline void launch_find_children(const node_rows<float>& rows, const node_list& nodes, std::int32_t k, token_id* tokens,
                                 cudaStream_t stream) {
  const row_tuning tuning = row_tuning_here(rows.rows.vocab);
  const launch_shape shape{.grid = dim3(static_cast<unsigned>(nodes.n) * tuning.blocks),
                           .threads = tuning.threads,
                           .shared_bytes = sizeof(team::memory),
                           .cluster = tuning.blocks};
  launch("find_children", find_children<node_rows<float>>, shape, stream, rows, nodes, k, tokens);
}

// In kernels.
__device__ inline float probability_of(const node_rows<float>& rows, node_id u, token_id token) {
  return rows.rows.data[static_cast<std::ptrdiff_t>(rows.row_of[u]) * rows.rows.vocab + token];
}

}  // namespace espalier::cuda::detail
