// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include "espalier/core/error.hpp"

namespace espalier {

//! A call of the CUDA runtime, or of a library on it, that failed. The message names the call and the reason.
struct cuda_error : error {
  using error::error;
};

namespace cuda {

//! Errors      cuda_error where the status of `call` is not success
inline void require(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // what is reported here is not found again by the next call
  raise<cuda_error>(call, " failed: ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ").");
}

}  // namespace cuda

}  // namespace espalier
