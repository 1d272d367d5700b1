// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/cuda/core/error.cuh"

namespace espalier::cuda {

//! Owns page-locked memory of the host, which the device can copy from and to while the host does something else.
//!
//! Errors      cuda_error where there is no memory
template <class ElementT>
class pinned_array {
  static_assert(std::is_trivially_copyable_v<ElementT>);

 public:
  pinned_array() = default;
  explicit pinned_array(std::size_t size) : size_(size) {
    if (size > 0) require(cudaMallocHost(reinterpret_cast<void**>(&data_), size * sizeof(ElementT)), "cudaMallocHost");
  }
  pinned_array(pinned_array&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  pinned_array& operator=(pinned_array other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~pinned_array() { (void)cudaFreeHost(data_); }

  ElementT* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<ElementT> span() const { return {data_, size_}; }
  ElementT& operator[](std::size_t i) const { return data_[i]; }

 private:
  ElementT* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace espalier::cuda
