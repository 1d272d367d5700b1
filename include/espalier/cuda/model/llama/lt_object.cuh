// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cublasLt.h>

#include <utility>

#include "espalier/core/error.hpp"
#include "espalier/cuda/core/error.cuh"

namespace espalier::cuda {

//! Errors      cuda_error where the status of `call` is not success
inline void require(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  raise<cuda_error>(call, " failed: ", cublasLtGetStatusString(status), ".");
}

namespace detail {

inline void destroy(cublasLtHandle_t it) {
  (void)cublasLtDestroy(it);
}
inline void destroy(cublasLtMatmulDesc_t it) {
  (void)cublasLtMatmulDescDestroy(it);
}
inline void destroy(cublasLtMatrixLayout_t it) {
  (void)cublasLtMatrixLayoutDestroy(it);
}
inline void destroy(cublasLtMatmulPreference_t it) {
  (void)cublasLtMatmulPreferenceDestroy(it);
}

// Owns an object of cuBLASLt. (Their types have no names of their own, which unique_ptr would need.)
template <class HandleT>
class lt_object {
 public:
  lt_object() = default;
  lt_object(lt_object&& other) noexcept : it_(std::exchange(other.it_, nullptr)) {}
  lt_object& operator=(lt_object other) noexcept {
    std::swap(it_, other.it_);
    return *this;
  }
  ~lt_object() {
    if (it_ != nullptr) destroy(it_);
  }

  HandleT get() const { return it_; }
  // Where a call that makes one leaves it.
  HandleT* place() { return &it_; }

 private:
  HandleT it_ = nullptr;
};

}  // namespace detail

}  // namespace espalier::cuda
