// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/tree_policy/chain.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text_batch.cuh"

namespace espalier::cuda {

//! espalier::plain on the device: it drafts nothing and launches nothing.
struct plain {
  static constexpr regime sampling = regime::any;

  std::int32_t max_nodes() const { return 0; }

  void reserve(std::int32_t) const {}
  node_list begin(const text_batch&, cudaStream_t) const { return {}; }
  template <class AnswerT>
  node_list take(const text_batch&, const AnswerT&, cudaStream_t) const {
    return {};
  }

  void observe(const text_batch&, const verdict*, cudaStream_t) const {}
};

}  // namespace espalier::cuda
