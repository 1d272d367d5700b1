// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "emulator/errors.hpp"
#include "emulator/grid.hpp"

enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2
};

enum cudaGraphNodeType {
  cudaGraphNodeTypeKernel = 0,
  cudaGraphNodeTypeMemcpy = 1,
  cudaGraphNodeTypeMemset = 2,
  cudaGraphNodeTypeHost = 3,
  cudaGraphNodeTypeGraph = 4,
  cudaGraphNodeTypeEmpty = 5,
  cudaGraphNodeTypeEventRecord = 7,
  cudaGraphNodeTypeMemAlloc = 10,
  cudaGraphNodeTypeMemFree = 11
};

//! An operation that was enqueued in a stream.
struct CUgraphNode_st {
  cudaGraphNodeType type;
  std::function<void()> work;
};

struct CUstream_st;

namespace emulator::detail {

using operation = CUgraphNode_st;

//! Memory that captured operations allocate: freed with the last graph that mentions it.
using held_memory = std::vector<std::shared_ptr<void>>;

//! The operations that the streams of one capture have been given so far.
struct capture {
  cudaStreamCaptureMode mode{};
  CUstream_st* origin = nullptr;
  std::thread::id owner;
  bool invalid = false;
  std::vector<operation> operations;
  held_memory memory;
};

//! The queue of a stream's operations that have not run. It is empty between calls unless streams run late.
struct queue {
  std::deque<operation> pending;
  std::size_t given = 0, done = 0;

  void run_until(std::size_t n) {
    while (done < n) {
      const operation next = std::move(pending.front());
      pending.pop_front(), ++done;
      next.work();
    }
  }
  void drain() { run_until(given); }
};

//! For each stream, the number of its operations that are known to come before.
using vector_clock = std::map<const CUstream_st*, std::size_t>;

}  // namespace emulator::detail

struct CUstream_st {
  bool blocking = true;  // whether it waits for the legacy stream
  std::shared_ptr<emulator::detail::capture> capture;
  emulator::detail::vector_clock clock;
  std::shared_ptr<emulator::detail::queue> work = std::make_shared<emulator::detail::queue>();
};

struct CUevent_st {
  std::chrono::steady_clock::time_point time;
  std::shared_ptr<emulator::detail::queue> work = std::make_shared<emulator::detail::queue>();
  std::size_t n_before = 0;  // operations of the queue that come before the event
  std::shared_ptr<emulator::detail::capture> capture;
  emulator::detail::vector_clock clock;
};

struct CUgraph_st {
  std::vector<emulator::detail::operation> operations;
  emulator::detail::held_memory memory;
};

struct CUgraphExec_st {
  std::shared_ptr<const CUgraph_st> graph;
};

using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraphExec_st*;
using cudaGraphNode_t = CUgraphNode_st*;

namespace emulator::detail {

//! Whether a call may be made while a stream captures.
enum in_capture { allowed, forbidden };

struct runtime {
  std::recursive_mutex lock;
  std::map<std::string, int, std::less<>> calls;
  std::map<std::string, cudaError_t, std::less<>> injected;
  std::map<void*, std::size_t> device_memory, host_memory;
  std::map<const void*, std::size_t> shared_limit;
  std::set<const void*> wide_clusters;  // kernels that allow clusters of more than 8 blocks
  std::set<CUstream_st*> streams;
  std::set<CUevent_st*> events;
  CUstream_st legacy;
  cudaError_t last = cudaSuccess;
  bool in_host_function = false;
  bool late = std::getenv("ESPALIER_EMULATOR_LATE") != nullptr;

  //! The stream behind a handle, or null for a handle that names none.
  CUstream_st* find(cudaStream_t handle) {
    if (reinterpret_cast<std::uintptr_t>(handle) <= 2) return &legacy;
    return streams.count(handle) != 0 ? handle : nullptr;
  }

  //! The capture that forbids the calling thread calls that might synchronise, or null.
  capture* strict_capture() const {
    for (const CUstream_st* s : streams) {
      capture* c = s->capture.get();
      if (c == nullptr || c->mode == cudaStreamCaptureModeRelaxed) continue;
      if (c->mode == cudaStreamCaptureModeGlobal || c->owner == std::this_thread::get_id()) return c;
    }
    return nullptr;
  }
};

inline runtime& the_runtime() {
  static auto* one = new runtime;  // outlives every static object that frees memory
  return *one;
}

//! Wraps one call of the API: counts it, lets it fail if a test has asked for that, and refuses it if a capture forbids
//! it.
template <class WorkT>
cudaError_t call(const char* name, in_capture rule, WorkT work) {
  runtime& r = the_runtime();
  const std::lock_guard hold(r.lock);
  ++r.calls[name];
  const cudaError_t result = [&]() -> cudaError_t {
    if (r.in_host_function) return cudaErrorNotPermitted;
    if (const auto i = r.injected.find(name); i != r.injected.end()) {
      const cudaError_t e = i->second;
      r.injected.erase(i);
      return e;
    }
    if (capture* c = r.strict_capture(); rule == forbidden && c != nullptr) {
      c->invalid = true;
      return cudaErrorStreamCaptureUnsupported;
    }
    return work(r);
  }();
  if (result != cudaSuccess && result != cudaErrorNotReady) r.last = result;
  return result;
}

//! Runs an operation, or stores it if the stream captures or runs late.
template <class WorkT>
cudaError_t enqueue(runtime& r, cudaStream_t handle, cudaGraphNodeType type, WorkT&& work) {
  CUstream_st* s = r.find(handle);
  if (s == nullptr) return cudaErrorInvalidResourceHandle;
  if (s->capture != nullptr) {
    if (s->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    s->capture->operations.push_back({type, std::forward<WorkT>(work)});
    ++s->clock[s];
    return cudaSuccess;
  }
  if (s == &r.legacy) {
    for (CUstream_st* other : r.streams) {
      if (other->capture == nullptr || !other->blocking) continue;
      other->capture->invalid = true;
      return cudaErrorStreamCaptureImplicit;
    }
    for (CUstream_st* other : r.streams) {
      if (other->blocking) other->work->drain();
    }
  } else if (r.late) {
    s->work->pending.push_back({type, std::forward<WorkT>(work)});
    ++s->work->given;
    return cudaSuccess;
  }
  s->work->drain();
  work();
  return cudaSuccess;
}

//! The stream, if it may be waited for; to wait for a capturing stream is an error in every mode.
inline cudaError_t settle(runtime& r, cudaStream_t handle, CUstream_st** out) {
  CUstream_st* s = *out = r.find(handle);
  if (s == nullptr) return cudaErrorInvalidResourceHandle;
  if (s->capture == nullptr) return cudaSuccess;
  s->capture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

//! The answer to a query. A query before the end lets one more operation run.
inline cudaError_t query(queue& work, std::size_t n) {
  if (work.done >= n) return cudaSuccess;
  work.run_until(work.done + 1);
  return cudaErrorNotReady;
}

//! Whether p points into one of the blocks.
inline bool holds(const std::map<void*, std::size_t>& blocks, const void* p) {
  auto next = blocks.upper_bound(const_cast<void*>(p));
  if (next == blocks.begin()) return false;
  const auto& [first, bytes] = *--next;
  return static_cast<const char*>(p) < static_cast<const char*>(first) + bytes;
}

}  // namespace emulator::detail

namespace emulator {

//! Number of calls of an API function since the last reset, for example calls("cudaMalloc").
inline int calls(const std::string& name) {
  const std::lock_guard hold(detail::the_runtime().lock);
  return detail::the_runtime().calls[name];
}

//! Clears the counts, the failures that were asked for, and the last error.
inline void reset() {
  detail::runtime& r = detail::the_runtime();
  const std::lock_guard hold(r.lock);
  r.calls.clear(), r.injected.clear();
  r.last = cudaSuccess;
}

//! Makes the next call of that function fail.
inline void fail_next(const std::string& name, cudaError_t error) {
  const std::lock_guard hold(detail::the_runtime().lock);
  detail::the_runtime().injected[name] = error;
}

//! Whether streams run as late as they may: only when something waits for them. A result that the host reads too early
//! is then an old one. The legacy stream never runs late.
inline bool& late() {
  return detail::the_runtime().late;
}

//! Number of blocks of device memory that have not been freed.
inline std::size_t allocations() {
  const std::lock_guard hold(detail::the_runtime().lock);
  return detail::the_runtime().device_memory.size();
}

//! Number of bytes in these blocks.
inline std::size_t allocated_bytes() {
  const std::lock_guard hold(detail::the_runtime().lock);
  std::size_t all = 0;
  for (const auto& [first, bytes] : detail::the_runtime().device_memory)
    all += bytes;
  return all;
}

}  // namespace emulator
