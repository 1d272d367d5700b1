// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/core/arrays.cu
#pragma once

#include <cuda_runtime.h>

#include "espalier/core/error.hpp"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "espalier::cuda needs compute capability 8.0 or later: set CMAKE_CUDA_ARCHITECTURES, for example to 90"
#endif

namespace espalier {

//! Error: a call of the CUDA runtime, or of a library that is built on it, has failed. The message names the call and
//! the reason.
struct cuda_error : error {
  using error::error;
};

namespace cuda {

//! Throws if `call` has failed, and clears the runtime's error.
//!
//! Errors      cuda_error if `status`, the result of `call`, is not success
inline void require(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // clears the error, so that the next call does not report it again
  raise<cuda_error>(call, " failed: ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ").");
}

}  // namespace cuda

}  // namespace espalier
