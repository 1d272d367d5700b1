// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/core/token.hpp"
#include "espalier/core/verdict.hpp"

namespace espalier::cuda {

//! What a round has accepted, in the memory of the device: by value into kernels.
//!
//! Shapes      decision, n: [1]; nodes, rows: [max], of which the first *n are there
//! Law         nodes[0] is the root; nodes[i + 1] is a child of nodes[i]; the last one is decision->accepted. *n is 0
//!             where the round has found a fault: nothing is committed then
struct path_view {
  const verdict* decision = nullptr;
  const node_id* nodes = nullptr;
  const std::int32_t* rows = nullptr;  //!< of the forward pass, the root's is 0
  const std::int32_t* n = nullptr;
  std::int32_t max = 0;
};

}  // namespace espalier::cuda
