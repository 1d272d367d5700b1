// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "espalier/cuda/core/error.cuh"

namespace bench {

using espalier::cuda::require;

//! Owns an event that records the time at which the device reaches it.
class timed_event {
 public:
  timed_event() { require(cudaEventCreate(&handle_), "cudaEventCreate"); }
  timed_event(timed_event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  timed_event& operator=(timed_event other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~timed_event() {
    if (handle_ != nullptr) (void)cudaEventDestroy(handle_);
  }

  operator cudaEvent_t() const { return handle_; }

  void record(cudaStream_t s) const { require(cudaEventRecord(handle_, s), "cudaEventRecord"); }
  //! Records the event as a node of the graph that captures the stream.
  void record_in_graph(cudaStream_t s) const {
    require(cudaEventRecordWithFlags(handle_, s, cudaEventRecordExternal), "cudaEventRecordWithFlags");
  }

  //! Microseconds from another event to this one.
  //!
  //! Pre         the device has reached both
  double microseconds_since(const timed_event& earlier) const {
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, earlier.handle_, handle_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e3;
  }

 private:
  cudaEvent_t handle_ = nullptr;
};

}  // namespace bench
