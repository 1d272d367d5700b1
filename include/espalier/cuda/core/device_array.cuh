// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/core/arrays.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/cuda/core/error.cuh"

namespace espalier::cuda {

//! Owns an array in the memory of the device. Its elements are not initialised, unless they are copied from the host.
//!
//! Errors      cuda_error if there is no memory, or a copy or a fill fails
//! Pre         for upload and download: the elements from `first` on, as many as the span has, are in the array; the
//!             span stays valid until the stream has passed the copy. A span that is not in pinned memory makes the
//!             copy synchronous
template <class ElementT>
class device_array {
  static_assert(std::is_trivially_copyable_v<ElementT>);

 public:
  device_array() = default;
  explicit device_array(std::size_t size) : size_(size) {
    if (size > 0) require(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(ElementT)), "cudaMalloc");
  }
  //! Makes a copy of elements of the host, and waits for it.
  explicit device_array(std::span<const ElementT> elements) : device_array(elements.size()) {
    if (size_ > 0)
      require(cudaMemcpy(data_, elements.data(), elements.size_bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }

  //! Returns an array whose bytes are all the lowest byte of `value`, in any stream from now on.
  static device_array filled(std::size_t size, int value) {
    device_array made(size);
    made.fill_bytes(value, nullptr);
    require(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
    return made;
  }

  device_array(device_array&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  device_array& operator=(device_array other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~device_array() { (void)cudaFree(data_); }

  //! The address of the array on the device.
  ElementT* data() const { return data_; }
  std::size_t size() const { return size_; }

  void upload(std::span<const ElementT> from, cudaStream_t stream, std::size_t first = 0) const {
    require(cudaMemcpyAsync(data_ + first, from.data(), from.size_bytes(), cudaMemcpyHostToDevice, stream),
            "cudaMemcpyAsync to the device");
  }
  void download(std::span<ElementT> to, cudaStream_t stream, std::size_t first = 0) const {
    require(cudaMemcpyAsync(to.data(), data_ + first, to.size_bytes(), cudaMemcpyDeviceToHost, stream),
            "cudaMemcpyAsync to the host");
  }
  //! Sets every byte to the lowest byte of this value, in the order of the stream.
  void fill_bytes(int value, cudaStream_t stream) const {
    if (size_ > 0) require(cudaMemsetAsync(data_, value, size_ * sizeof(ElementT), stream), "cudaMemsetAsync");
  }

 private:
  ElementT* data_ = nullptr;
  std::size_t size_ = 0;
};

//! Owns page-locked memory of the host: the device can copy from and to it while the host does something else. Its
//! elements are not initialised.
//!
//! Errors      cuda_error if there is no memory
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
