// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"

namespace espalier::cuda {

//! Which nodes the trees of a round were cut to, in the memory of the device: by value into kernels.
//!
//! Shapes      was [places][stride]: the number that a node of the tree had before, ascending, the root's first
struct moved_nodes {
  const node_id* was = nullptr;
  std::int32_t stride = 0;

  //! Those of one text.
  ESPALIER_HOST_DEVICE const node_id* of(std::int32_t place) const {
    return was + static_cast<std::ptrdiff_t>(place) * stride;
  }
};

}  // namespace espalier::cuda
