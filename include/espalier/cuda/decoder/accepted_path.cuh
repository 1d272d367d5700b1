// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/decoder/decoder.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/text_batch.cuh"

namespace espalier::cuda {

namespace detail {

// The arrays of a path_view, to be written. Shapes: as path_view
struct found_paths {
  node_id* nodes;
  std::int32_t* rows;
  std::int32_t* n;
  std::int32_t* base;
  std::int32_t max;
};

// Finds the accepted paths; one thread works for a lane, since paths are short.
template <class VerdictT>
ESPALIER_KERNEL void find_path(text_batch texts, const VerdictT* decision, const std::int32_t* row_of_node,
                               std::int32_t n_rows, const fault* found, found_paths out) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  out.base[here.place] = here.text.state->size - 1;
  std::int32_t& n = out.n[here.place];
  if (found[here.place].what != fault::kind::none) {
    n = 0;
    return;
  }
  const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(here.place) * out.max;
  const node_id last = decision[here.place].accepted;
  n = here.tree.depth[last] + 1;
  for (node_id u = last; u != no_node; u = here.tree.parent[u]) {
    const std::int32_t depth = here.tree.depth[u];
    out.nodes[first + depth] = u;
    out.rows[first + depth] = row_of_node[static_cast<std::ptrdiff_t>(here.lane) * n_rows + u];
  }
}

}  // namespace detail

//! The accepted paths of a round's texts in the memory of the device, and the search that writes them there.
//!
//! Complexity  one launch with one thread for each text, O(depth). No synchronisation
//! Errors      cuda_error where there is no memory
class accepted_path {
 public:
  //! Has room for max_texts texts, and trees of max_nodes nodes, root included.
  explicit accepted_path(std::int32_t max_nodes, std::int32_t max_texts = 1)
      : max_(max_nodes),
        nodes_(static_cast<std::size_t>(max_nodes) * static_cast<std::size_t>(max_texts)),
        rows_(nodes_.size()),
        n_(static_cast<std::size_t>(max_texts)),
        base_(static_cast<std::size_t>(max_texts)) {}

  //! Enqueues the search, and returns the paths; they are valid until the next call.
  //!
  //! Shapes      decision, found [places]; row_of_node [lanes][n_rows]: the row of each node in its lane
  path_view find(const text_batch& texts, const verdict* decision, const std::int32_t* row_of_node, std::int32_t n_rows,
                 const fault* found, cudaStream_t stream) const {
    launch("find_path", detail::find_path<verdict>, {.grid = texts.lanes()}, stream, texts, decision, row_of_node,
           n_rows, found, {nodes_.data(), rows_.data(), n_.data(), base_.data(), max_});
    return {decision, nodes_.data(), rows_.data(), n_.data(), base_.data(), max_};
  }

 private:
  std::int32_t max_;
  device_array<node_id> nodes_;
  device_array<std::int32_t> rows_;
  device_array<std::int32_t> n_;
  device_array<std::int32_t> base_;
};

}  // namespace espalier::cuda
