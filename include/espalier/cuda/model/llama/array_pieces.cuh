// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/llama/llama_backend.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "espalier/cuda/core/device_array.cuh"

namespace espalier::cuda::detail {

// One array of the device, handed out in pieces that begin on 256 bytes, an alignment with which matrix products are
// fast. Pieces are taken twice: at first, while the array has no memory, take() only counts and gives null.
template <class ElementT>
class array_pieces {
 public:
  // Allocates as much as the calls of take() have counted; the next call gives the first piece.
  void allocate() {
    memory_ = device_array<ElementT>(used_);
    used_ = 0;
  }

  ElementT* take(std::size_t n) {
    constexpr std::size_t granule = 256 / sizeof(ElementT);
    const std::size_t first = used_;
    used_ += (n + granule - 1) / granule * granule;
    return memory_.data() != nullptr ? memory_.data() + first : nullptr;
  }

  void zero(cudaStream_t stream) const { memory_.fill_bytes(0, stream); }
  std::size_t bytes() const { return memory_.size() * sizeof(ElementT); }

 private:
  device_array<ElementT> memory_;
  std::size_t used_ = 0;
};

}  // namespace espalier::cuda::detail
