// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/core/token.hpp"

namespace espalier::cuda {

//! Nodes in the memory of the device, as many as a launch is made for: those that are not there are no_node.
//!
//! Shapes      nodes [n]
struct node_list {
  const node_id* nodes = nullptr;
  std::int32_t n = 0;
};

}  // namespace espalier::cuda
