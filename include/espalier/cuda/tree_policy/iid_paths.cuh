// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/tree_policy/delayed.cu
#pragma once

#include "espalier/cuda/tree_policy/delayed.cuh"
#include "espalier/tree_policy/iid_paths.hpp"

namespace espalier::cuda {

//! espalier::iid_paths on the device: a delayed tree without a trunk. Its complexity, law and errors are those of
//! delayed.
//!
//! Source      as espalier::iid_paths
class iid_paths : public delayed {
 public:
  explicit iid_paths(iid_paths_options options = {})
      : delayed({.paths = options.paths, .trunk = 0, .length = options.length}) {}
};

}  // namespace espalier::cuda
