// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/core/text.cuh"

namespace espalier::cuda {

//! A tree and the text that it continues: what one sequence brings to a forward pass. By value into kernels.
struct tree_source {
  tree_writer tree;
  text_view text;
  std::int32_t sequence = 0;  //!< its id in the KV store
};

}  // namespace espalier::cuda
