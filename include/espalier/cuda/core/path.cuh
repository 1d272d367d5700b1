// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/decoder/decoder.cu
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/verdict.hpp"

namespace espalier::cuda {

//! The path that a round has accepted in the tree of each text, in the memory of the device. Passed by value into
//! kernels.
//!
//! Shapes      decision, n, base: [places]; nodes, rows: [places][max], of which the first n of each are valid
//! Law         nodes[0] is the root; nodes[i + 1] is a child of nodes[i]; the last node is decision->accepted. n is 0
//!             if the round has found a fault: nothing is committed then
struct path_view {
  const verdict* decision = nullptr;
  const node_id* nodes = nullptr;
  const std::int32_t* rows = nullptr;  //!< row of each node within the text's rows of the forward pass; the root's is 0
  const std::int32_t* n = nullptr;
  const std::int32_t* base = nullptr;  //!< number of rows of the text that the target's cache held before the round
  std::int32_t max = 0;

  //! The path of one text.
  ESPALIER_HOST_DEVICE path_view of(std::int32_t place) const {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(place) * max;
    return {decision + place, nodes + first, rows + first, n + place, base + place, max};
  }
};

}  // namespace espalier::cuda
