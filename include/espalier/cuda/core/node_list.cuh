// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"

namespace espalier::cuda {

//! Nodes of each text in the memory of the device, as many as a launch is made for: those that are not there are
//! no_node.
//!
//! Shapes      nodes [places][stride], the first n of each; [n], the same for all, where the stride is 0
struct node_list {
  const node_id* nodes = nullptr;
  std::int32_t n = 0;
  std::int32_t stride = 0;

  ESPALIER_HOST_DEVICE const node_id* of(std::int32_t place) const {
    return nodes + static_cast<std::ptrdiff_t>(place) * stride;
  }
};

//! What the nodes of a round's trees were before these were cut, or built anew: in the memory of the device, by value
//! into kernels.
//!
//! Shapes      was [places][stride]: the number that a node of the tree had before, the root's first; no_node where
//!             nobody was asked about it
struct moved_nodes {
  const node_id* was = nullptr;
  std::int32_t stride = 0;

  //! Those of one text.
  ESPALIER_HOST_DEVICE const node_id* of(std::int32_t place) const {
    return was + static_cast<std::ptrdiff_t>(place) * stride;
  }
};

}  // namespace espalier::cuda
