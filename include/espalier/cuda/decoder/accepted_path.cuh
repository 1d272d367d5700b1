// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/path.cuh"

namespace espalier::cuda {

namespace detail {

// One thread: paths are short.
template <class VerdictT>
ESPALIER_KERNEL void find_path(tree_writer tree, const VerdictT* decision, const std::int32_t* row_of_node,
                               const fault* found, node_id* nodes, std::int32_t* rows, std::int32_t* n) {
  if (found->what != fault::kind::none) {
    *n = 0;
    return;
  }
  const node_id last = decision->accepted;
  *n = tree.depth[last] + 1;
  for (node_id u = last; u != no_node; u = tree.parent[u]) {
    nodes[tree.depth[u]] = u;
    rows[tree.depth[u]] = row_of_node[u];
  }
}

}  // namespace detail

//! The path that a verdict accepts, for those who commit it.
//!
//! Complexity  one launch of one thread, O(depth). No synchronisation
//! Errors      cuda_error where there is no memory
class accepted_path {
 public:
  //! For trees of this many nodes, root included.
  explicit accepted_path(std::int32_t max_nodes)
      : max_(max_nodes), nodes_(static_cast<std::size_t>(max_nodes)), rows_(nodes_.size()), n_(1) {}

  //! Valid until the next call.
  //!
  //! Shapes      row_of_node [n_nodes]: the row of each node in the forward pass
  path_view find(const tree_writer& tree, const verdict* decision, const std::int32_t* row_of_node, const fault* found,
                 cudaStream_t stream) const {
    launch("find_path", detail::find_path<verdict>, {}, stream, tree, decision, row_of_node, found, nodes_.data(),
           rows_.data(), n_.data());
    return {decision, nodes_.data(), rows_.data(), n_.data(), max_};
  }

 private:
  std::int32_t max_;
  device_array<node_id> nodes_;
  device_array<std::int32_t> rows_;
  device_array<std::int32_t> n_;
};

}  // namespace espalier::cuda
