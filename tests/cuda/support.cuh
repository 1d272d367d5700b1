// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <span>
#include <vector>

#include "espalier/cuda/core/device_array.cuh"

namespace espalier_test {

//! Makes the emulated device one of this compute capability while it lives: below 9.0 it has no clusters, and grants a
//! block the shared memory that every device from 8.0 on does. A real device stays what it is.
class emulated_capability {
 public:
#if defined(__CUDACC__)
  explicit emulated_capability(int) {}
#else
  explicit emulated_capability(int major) {
    emulator::device().major = major;
    if (major >= 9) return;
    emulator::device().clusterLaunch = 0;
    emulator::device().sharedMemPerBlockOptin = 99 * 1024;
  }
  emulated_capability(const emulated_capability&) = delete;
  emulated_capability& operator=(const emulated_capability&) = delete;
  ~emulated_capability() {
    emulator::device() = before_;
  }

 private:
  cudaDeviceProp before_ = emulator::device();
#endif
};

// Copies between host and device, which wait for them.

template <class ElementT>
espalier::cuda::device_array<ElementT> to_device(const std::vector<ElementT>& elements) {
  return espalier::cuda::device_array<ElementT>(std::span<const ElementT>(elements));
}

template <class ElementT>
std::vector<ElementT> to_host(const ElementT* elements, std::size_t n) {
  std::vector<ElementT> copy(n);
  espalier::cuda::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  espalier::cuda::require(cudaMemcpy(copy.data(), elements, n * sizeof(ElementT), cudaMemcpyDeviceToHost),
                          "cudaMemcpy");
  return copy;
}

template <class ElementT>
std::vector<ElementT> to_host(const espalier::cuda::device_array<ElementT>& elements) {
  return to_host(elements.data(), elements.size());
}

}  // namespace espalier_test
