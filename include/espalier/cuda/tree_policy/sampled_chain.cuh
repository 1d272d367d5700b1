// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/tree_policy/delayed.cu
#pragma once

#include "espalier/concepts/regime.hpp"
#include "espalier/cuda/tree_policy/delayed.cuh"
#include "espalier/tree_policy/sampled_chain.hpp"

namespace espalier::cuda {

//! espalier::sampled_chain on the device: a delayed tree of one path. Its complexity, law and errors are those of
//! delayed.
//!
//! Source      as espalier::sampled_chain
class sampled_chain : public delayed {
 public:
  static constexpr regime sampling = regime::single_path | regime::iid | regime::without_replacement;

  explicit sampled_chain(sampled_chain_options options = {})
      : delayed({.paths = 1, .trunk = 0, .length = options.length}) {}
};

}  // namespace espalier::cuda
