// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <span>
#include <vector>

#include "espalier/cuda/core/device_array.cuh"

//! Copies between host and device for tests, which wait for them.
namespace espalier_test {

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
