// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/cuda/core/device_array.cuh"
#include "espalier/verifier/khisti/pair_select_view.hpp"

// What the stages of khisti's tournament keep, for each text of a round.
namespace espalier::cuda::detail {

// By value into kernels.
//
// Shapes      distribution [places][2][vocab]; rank, large [places][vocab]; ranks [places]
struct stage_memory_view {
  float* distribution;
  std::uint16_t* rank;
  std::uint32_t* large;
  espalier::detail::pair_ranks<float, 1024>* ranks;
  std::int32_t vocab;

  // That of one text. Each block of its team brings a window of its own, in shared memory.
  __device__ espalier::detail::pair_select_memory<float> of(std::int32_t place,
                                                            espalier::detail::pair_window& window) const {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(place) * vocab;
    return {{distribution + 2 * first, distribution + 2 * first + vocab},
            rank + first,
            large + first,
            ranks + place,
            &window};
  }
};

// The memory of such a view: 14 bytes a token of the vocabulary and some 33 KiB, for each text.
class stage_memory {
 public:
  stage_memory() = default;
  stage_memory(std::int32_t vocab, std::int32_t max_texts)
      : vocab_(vocab),
        rank_(static_cast<std::size_t>(vocab) * static_cast<std::size_t>(max_texts)),
        large_(rank_.size()),
        distribution_(2 * rank_.size()),
        ranks_(static_cast<std::size_t>(max_texts)) {}

  stage_memory_view view() const { return {distribution_.data(), rank_.data(), large_.data(), ranks_.data(), vocab_}; }

 private:
  std::int32_t vocab_ = 0;
  device_array<std::uint16_t> rank_;
  device_array<std::uint32_t> large_;
  device_array<float> distribution_;
  device_array<espalier::detail::pair_ranks<float, 1024>> ranks_;
};

}  // namespace espalier::cuda::detail
