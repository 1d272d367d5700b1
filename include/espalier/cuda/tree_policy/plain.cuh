// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text.cuh"

namespace espalier::cuda {

//! espalier::plain on the device: drafts nothing, launches nothing.
struct plain {
  static constexpr regime sampling = regime::any;

  std::int32_t max_nodes() const { return 0; }

  node_list begin(tree_writer, cudaStream_t) const { return {}; }
  template <class AnswerT>
  node_list take(tree_writer, const AnswerT&, chance_source, cudaStream_t) const {
    return {};
  }

  void observe(tree_writer, const verdict*, cudaStream_t) const {}
};

}  // namespace espalier::cuda
