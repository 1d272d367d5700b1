// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/decoder/decoder.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <span>

#include "espalier/core/token.hpp"
#include "espalier/cuda/concepts/drafter.cuh"

namespace espalier::cuda {

//! The drafter of plain decoding, which proposes nothing. It is used with the policy `plain`.
struct no_drafter {
  void reserve(std::int32_t, std::int32_t, fault*) {}
  void begin(std::int32_t, text_view, std::span<const token_id>, std::int32_t, cudaStream_t) {}
  void ensure(std::int32_t, std::int32_t, cudaStream_t) {}
  void commit(const text_batch&, path_view, cudaStream_t) {}
  std::int32_t capacity() const { return (std::numeric_limits<std::int32_t>::max)(); }
};

static_assert(Drafter<no_drafter>);

}  // namespace espalier::cuda
