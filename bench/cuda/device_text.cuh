// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/text_batch.cuh"

namespace bench {

//! A text on the device, for kernels that need one.
class device_text {
 public:
  //! A text of n equal tokens.
  device_text(std::int32_t size, std::int32_t capacity)
      : device_text(std::vector<espalier::token_id>(static_cast<std::size_t>(size), 1), capacity) {}
  device_text(std::span<const espalier::token_id> tokens, std::int32_t capacity, std::uint64_t seed = 0)
      : tokens_(static_cast<std::size_t>(capacity)), state_(1), capacity_(capacity) {
    const espalier::cuda::text_state state{static_cast<std::int32_t>(tokens.size()), capacity, 0, seed};
    tokens_.fill_bytes(0, nullptr);
    tokens_.upload(tokens, nullptr);
    state_.upload(std::span(&state, 1), nullptr);
    espalier::cuda::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  espalier::cuda::text_view view() const { return {tokens_.data(), state_.data(), capacity_}; }

 private:
  espalier::cuda::device_array<espalier::token_id> tokens_;
  espalier::cuda::device_array<espalier::cuda::text_state> state_;
  std::int32_t capacity_;
};

static __global__ void begin_tree(espalier::tree_writer tree, espalier::token_id root, std::int32_t limit) {
  tree.reset(root, limit);
}

//! Begins a round: the tree becomes a root alone.
inline void reset_tree(espalier::tree_writer tree, std::int32_t limit, cudaStream_t s, espalier::token_id root = 1) {
  espalier::cuda::launch("begin_tree", begin_tree, {}, s, tree, root, limit);
}

}  // namespace bench
