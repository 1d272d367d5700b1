// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/core/tree_view.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/tree.cuh"

namespace bench {

//! A tree of the host on the device, to be read there. Synchronises.
inline espalier::cuda::tree uploaded(espalier::tree_view from) {
  espalier::cuda::tree to(from.n_draws);
  const espalier::tree_writer w = to.writer();
  const auto copy = [](auto* there, const auto* here, std::int32_t n) {
    if (n > 0)
      espalier::cuda::require(
          cudaMemcpy(there, here, static_cast<std::size_t>(n) * sizeof *here, cudaMemcpyHostToDevice), "cudaMemcpy");
  };
  copy(w.token, from.token, from.n_nodes);
  copy(w.parent, from.parent, from.n_nodes);
  copy(w.depth, from.depth, from.n_nodes);
  copy(w.log_prob, from.log_prob, from.n_nodes);
  copy(w.path_log_prob, from.path_log_prob, from.n_nodes);
  copy(w.first_draw, from.first_draw, from.n_nodes);
  copy(w.next_draw, from.next_draw, from.n_draws);
  copy(w.drawn_node, from.drawn_node, from.n_draws);
  const espalier::tree_size size{from.n_nodes, from.n_draws, from.n_draws};
  copy(w.size, &size, 1);
  return to;
}

}  // namespace bench
