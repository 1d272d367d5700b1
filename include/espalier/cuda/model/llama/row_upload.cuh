// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>

#include "espalier/core/error.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"

namespace espalier::cuda::detail {

// Writes rows of float to the device as NumberT. Rows that follow one another in memory are copied together.
template <class NumberT>
class row_upload {
 public:
  row_upload() : buffer_(std::size_t{1} << 21) {}

  // Takes n numbers for the memory from `to` on. Errors: model_error for a finite number beyond the range of NumberT.
  void add(NumberT* to, const float* values, std::size_t n) {
    for (std::size_t done = 0; done < n;) {
      if (used_ == buffer_.size() || to + done != to_ + used_) flush(to + done);
      const std::size_t many = (std::min)(n - done, buffer_.size() - used_);
      for (std::size_t i = 0; i < many; ++i)
        buffer_[used_ + i] = narrow(values[done + i]);
      used_ += many, done += many;
    }
  }

  // Copies the rows that wait in the buffer; the next row is expected at `next`.
  void flush(NumberT* next = nullptr) {
    if (used_ > 0)
      require(cudaMemcpy(to_, buffer_.data(), used_ * sizeof(NumberT), cudaMemcpyHostToDevice), "cudaMemcpy");
    to_ = next, used_ = 0;
  }

 private:
  static NumberT narrow(float value) {
    const auto number = NumberT(value);
    if constexpr (!std::is_same_v<NumberT, float>) {
      if (std::isfinite(value) && std::isinf(static_cast<float>(number))) {
        raise<model_error>("a weight is ", value,
                           std::is_same_v<NumberT, __half>
                               ? ", but half precision ends at 65504: load the model in bfloat16 or float."
                               : ", but bfloat16 ends at 3.3895e38: load the model in float.");
      }
    }
    return number;
  }

  pinned_array<NumberT> buffer_;
  NumberT* to_ = nullptr;
  std::size_t used_ = 0;
};

// Copies n numbers to the device. Synchronises.
inline void upload_vector(float* to, const float* values, int n) {
  require(cudaMemcpy(to, values, static_cast<std::size_t>(n) * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy");
}

}  // namespace espalier::cuda::detail
