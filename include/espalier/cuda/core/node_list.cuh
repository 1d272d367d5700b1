// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/tree_policy/chain.cu
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"

namespace espalier::cuda {

//! A list of nodes for each text, in the memory of the device. All lists have the length that launches are made for;
//! unused entries are no_node.
//!
//! Shapes      nodes [places][stride], the first n of each; or [n], one list for all texts, if the stride is 0
struct node_list {
  const node_id* nodes = nullptr;
  std::int32_t n = 0;
  std::int32_t stride = 0;

  ESPALIER_HOST_DEVICE const node_id* of(std::int32_t place) const {
    return nodes + static_cast<std::ptrdiff_t>(place) * stride;
  }
};

//! The earlier numbers of the nodes of a round's trees, after the trees were cut or built anew. In the memory of the
//! device, passed by value into kernels.
//!
//! Shapes      was [places][stride]: the earlier number of each node of the present tree, beginning with the root;
//!             no_node for a node whose row was not asked for
struct moved_nodes {
  const node_id* was = nullptr;
  std::int32_t stride = 0;

  //! The numbers of one text.
  ESPALIER_HOST_DEVICE const node_id* of(std::int32_t place) const {
    return was + static_cast<std::ptrdiff_t>(place) * stride;
  }
};

}  // namespace espalier::cuda
