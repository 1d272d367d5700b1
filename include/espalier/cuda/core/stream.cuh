// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/core/arrays.cu
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "espalier/cuda/core/error.cuh"

namespace espalier::cuda {

//! Owns a stream, which does not wait for the default stream.
//!
//! Errors      cuda_error if the stream cannot be made
class stream {
 public:
  stream() { require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;
  ~stream() { (void)cudaStreamDestroy(stream_); }

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

//! A point in a stream that the host can wait for; record() sets it to the end of the work that the stream has so far.
//!
//! Errors      cuda_error if a call fails; wait() also reports errors of the work before the point
class event {
 public:
  event() { require(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
  event(const event&) = delete;
  event& operator=(const event&) = delete;
  ~event() { (void)cudaEventDestroy(event_); }

  void record(cudaStream_t stream) const { require(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  //! Blocks the host until the stream has passed the point that was recorded last; returns at once if there is none.
  void wait() const { require(cudaEventSynchronize(event_), "cudaEventSynchronize"); }

 private:
  cudaEvent_t event_ = nullptr;
};

//! A series of launches, captured once from a stream and replayed by launch() with one call each time.
//!
//! Errors      cuda_error, and whatever `enqueue` throws; after an error the stream no longer captures
class graph {
 public:
  //! Captures the work that enqueue() puts into the stream.
  template <class EnqueueT>
  graph(cudaStream_t stream, const EnqueueT& enqueue) {
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    capture open{stream};
    enqueue();
    open.end();
    require(cudaGraphInstantiate(&replay_, open.captured, 0), "cudaGraphInstantiate");
  }
  graph(graph&& other) noexcept : replay_(std::exchange(other.replay_, nullptr)) {}
  graph& operator=(graph other) noexcept {
    std::swap(replay_, other.replay_);
    return *this;
  }
  ~graph() {
    if (replay_ != nullptr) (void)cudaGraphExecDestroy(replay_);
  }

  void launch(cudaStream_t stream) const { require(cudaGraphLaunch(replay_, stream), "cudaGraphLaunch"); }

 private:
  // Ends the capture, also if the captured function throws.
  struct capture {
    cudaStream_t stream;
    cudaGraph_t captured = nullptr;
    bool open = true;

    void end() {
      open = false;
      require(cudaStreamEndCapture(stream, &captured), "cudaStreamEndCapture");
    }
    ~capture() {
      if (open) (void)cudaStreamEndCapture(stream, &captured);
      if (captured != nullptr) (void)cudaGraphDestroy(captured);
    }
  };

  cudaGraphExec_t replay_ = nullptr;
};

}  // namespace espalier::cuda
