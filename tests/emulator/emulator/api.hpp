// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>

#include "emulator/properties.hpp"
#include "emulator/runtime.hpp"

// The runtime API, but for launches. Work runs when it is enqueued; a capturing stream stores it instead.

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
  cudaMemoryTypeManaged = 3
};
struct cudaPointerAttributes {
  cudaMemoryType type = cudaMemoryTypeUnregistered;
  int device = -1;
  void* devicePointer = nullptr;
  void* hostPointer = nullptr;
};
using cudaHostFn_t = void (*)(void*);

inline const cudaStream_t cudaStreamLegacy = reinterpret_cast<cudaStream_t>(std::uintptr_t{1});
inline const cudaStream_t cudaStreamPerThread = reinterpret_cast<cudaStream_t>(std::uintptr_t{2});
enum : unsigned { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };
enum : unsigned { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum : unsigned { cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };

namespace emulator::detail {

using memory_map = std::map<void*, std::size_t>;

//! Bytes that read as NaN until they are written.
inline void* fresh_memory(std::size_t bytes) {
  void* p = std::malloc(bytes);
  if (p != nullptr) std::memset(p, 0xFF, bytes);
  return p;
}

inline cudaError_t allocate(memory_map& known, void** out, std::size_t bytes) {
  if (out == nullptr) return cudaErrorInvalidValue;
  *out = nullptr;
  if (bytes == 0) return cudaSuccess;
  void* p = bytes <= device().totalGlobalMem ? fresh_memory(bytes) : nullptr;
  if (p == nullptr) return cudaErrorMemoryAllocation;
  known[p] = bytes;
  *out = p;
  return cudaSuccess;
}

inline cudaError_t release(memory_map& known, void* p) {
  if (p == nullptr) return cudaSuccess;
  if (known.erase(p) == 0) return cudaErrorInvalidValue;
  std::free(p);
  return cudaSuccess;
}

inline void drain_all(runtime& r, bool only_blocking = false) {
  for (CUstream_st* s : r.streams) {
    if (s->blocking || !only_blocking) s->work->drain();
  }
}

namespace api {

// ---- errors

inline cudaError_t cudaGetLastError() {
  return std::exchange(the_runtime().last, cudaSuccess);
}
inline cudaError_t cudaPeekAtLastError() {
  return the_runtime().last;
}

// ---- the device

inline cudaError_t cudaGetDeviceCount(int* count) {
  return call(__func__, allowed, [&](auto&) { return *count = 1, cudaSuccess; });
}
inline cudaError_t cudaGetDevice(int* device) {
  return call(__func__, allowed, [&](auto&) { return *device = 0, cudaSuccess; });
}
inline cudaError_t cudaSetDevice(int device) {
  return call(__func__, allowed, [&](auto&) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; });
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call(__func__, allowed, [&](auto&) {
    if (device != 0) return cudaErrorInvalidDevice;
    *properties = emulator::device();
    return cudaSuccess;
  });
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  return call(__func__, allowed, [&](auto&) {
    if (device != 0) return cudaErrorInvalidDevice;
    *value = attribute(which);
    return *value < 0 ? cudaErrorInvalidValue : cudaSuccess;
  });
}
inline cudaError_t cudaDeviceSynchronize() {
  return call(__func__, forbidden, [&](runtime& r) {
    for (CUstream_st* s : r.streams) {
      if (s->capture == nullptr) continue;
      s->capture->invalid = true;
      return cudaErrorStreamCaptureUnsupported;
    }
    drain_all(r);
    return cudaSuccess;
  });
}

// ---- memory

inline cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  return call(__func__, forbidden, [&](auto& r) { return allocate(r.device_memory, p, bytes); });
}
inline cudaError_t cudaFree(void* p) {
  return call(__func__, forbidden, [&](auto& r) { return drain_all(r), release(r.device_memory, p); });
}
inline cudaError_t cudaHostAlloc(void** p, std::size_t bytes, unsigned = cudaHostAllocDefault) {
  return call(__func__, forbidden, [&](auto& r) { return allocate(r.host_memory, p, bytes); });
}
inline cudaError_t cudaMallocHost(void** p, std::size_t bytes, unsigned = cudaHostAllocDefault) {
  return call(__func__, forbidden, [&](auto& r) { return allocate(r.host_memory, p, bytes); });
}
inline cudaError_t cudaFreeHost(void* p) {
  return call(__func__, forbidden, [&](auto& r) { return drain_all(r), release(r.host_memory, p); });
}

inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  return call(__func__, allowed, [&](runtime& r) {
    void* const address = const_cast<void*>(p);
    if (holds(r.device_memory, p))
      *attributes = {cudaMemoryTypeDevice, 0, address, nullptr};
    else if (holds(r.host_memory, p))
      *attributes = {cudaMemoryTypeHost, 0, address, address};
    else
      *attributes = {cudaMemoryTypeUnregistered, -1, nullptr, address};
    return cudaSuccess;
  });
}

//! In a capture the memory belongs to the graph, and is fresh in every launch of it.
inline cudaError_t cudaMallocAsync(void** p, std::size_t bytes, cudaStream_t stream) {
  return call(__func__, allowed, [&](runtime& r) {
    CUstream_st* s = r.find(stream);
    if (s == nullptr || s->capture == nullptr) {
      return s == nullptr ? cudaErrorInvalidResourceHandle : allocate(r.device_memory, p, bytes);
    }
    void* memory = *p = fresh_memory(bytes);
    s->capture->memory.emplace_back(memory, [](void* m) { std::free(m); });
    return enqueue(r, stream, cudaGraphNodeTypeMemAlloc, [=] { std::memset(memory, 0xFF, bytes); });
  });
}
inline cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  return call(__func__, allowed, [&](runtime& r) {
    const CUstream_st* s = r.find(stream);
    const bool captured = s != nullptr && s->capture != nullptr;
    if (!captured && p != nullptr && r.device_memory.count(p) == 0) return cudaErrorInvalidValue;
    return enqueue(r, stream, cudaGraphNodeTypeMemFree, [&r, p, captured] {
      if (!captured) (void)release(r.device_memory, p);
    });
  });
}
template <class T>
cudaError_t cudaMalloc(T** p, std::size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(p), bytes);
}
template <class T>
cudaError_t cudaHostAlloc(T** p, std::size_t bytes, unsigned flags = cudaHostAllocDefault) {
  return cudaHostAlloc(reinterpret_cast<void**>(p), bytes, flags);
}
template <class T>
cudaError_t cudaMallocHost(T** p, std::size_t bytes, unsigned flags = cudaHostAllocDefault) {
  return cudaMallocHost(reinterpret_cast<void**>(p), bytes, flags);
}
template <class T>
cudaError_t cudaMallocAsync(T** p, std::size_t bytes, cudaStream_t stream) {
  return cudaMallocAsync(reinterpret_cast<void**>(p), bytes, stream);
}

inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  return call(__func__, forbidden, [&](auto& r) {
    drain_all(r, true);
    if (bytes != 0) std::memmove(to, from, bytes);
    return cudaSuccess;
  });
}
inline cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return call(__func__, forbidden, [&](auto& r) {
    drain_all(r, true);
    if (bytes != 0) std::memset(to, value, bytes);
    return cudaSuccess;
  });
}
//! From host memory that is not pinned it takes the bytes at once, and into such memory it waits.
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                                   cudaStream_t stream = nullptr) {
  return call(__func__, allowed, [&](runtime& r) {
    const CUstream_st* s = r.find(stream);
    const auto pageable = [&r](const void* p) { return !holds(r.device_memory, p) && !holds(r.host_memory, p); };
    const auto copy = [=] {
      if (bytes != 0) std::memmove(to, from, bytes);
    };
    if (s == nullptr || s->capture != nullptr || !r.late || bytes == 0 || !(pageable(to) || pageable(from))) {
      return enqueue(r, stream, cudaGraphNodeTypeMemcpy, copy);
    }
    if (!pageable(to)) {
      const auto* first = static_cast<const char*>(from);
      return enqueue(r, stream, cudaGraphNodeTypeMemcpy, [to, taken = std::vector<char>(first, first + bytes)] {
        std::memcpy(to, taken.data(), taken.size());
      });
    }
    s->work->drain();
    copy();
    return cudaSuccess;
  });
}
inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream = nullptr) {
  return call(__func__, allowed, [&](auto& r) {
    return enqueue(r, stream, cudaGraphNodeTypeMemset, [=] {
      if (bytes != 0) std::memset(to, value, bytes);
    });
  });
}
inline cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                     std::size_t width, std::size_t height, cudaMemcpyKind,
                                     cudaStream_t stream = nullptr) {
  return call(__func__, allowed, [&](auto& r) {
    if (width > to_pitch || width > from_pitch) return cudaErrorInvalidValue;
    return enqueue(r, stream, cudaGraphNodeTypeMemcpy, [=] {
      for (std::size_t y = 0; width != 0 && y < height; ++y) {
        std::memmove(static_cast<char*>(to) + y * to_pitch, static_cast<const char*>(from) + y * from_pitch, width);
      }
    });
  });
}

// ---- streams

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return call(__func__, allowed, [&](runtime& r) {
    r.streams.insert(*stream = new CUstream_st);
    (*stream)->blocking = (flags & cudaStreamNonBlocking) == 0;
    return cudaSuccess;
  });
}
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call(__func__, allowed, [&](runtime& r) {
    if (r.streams.erase(stream) == 0) return cudaErrorInvalidResourceHandle;
    stream->work->drain();
    delete stream;
    return cudaSuccess;
  });
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call(__func__, forbidden, [&](runtime& r) {
    CUstream_st* s = nullptr;
    if (const cudaError_t fault = settle(r, stream, &s); fault != cudaSuccess) return fault;
    if (s == &r.legacy) drain_all(r, true);
    return s->work->drain(), cudaSuccess;
  });
}
inline cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call(__func__, forbidden, [&](runtime& r) {
    CUstream_st* s = nullptr;
    if (const cudaError_t fault = settle(r, stream, &s); fault != cudaSuccess) return fault;
    return query(*s->work, s->work->given);
  });
}
inline cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t work, void* data) {
  return call(__func__, allowed, [&](auto& r) {
    return enqueue(r, stream, cudaGraphNodeTypeHost, [&r, work, data] {
      r.in_host_function = true;
      work(data);
      r.in_host_function = false;
    });
  });
}

// ---- events

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return call(__func__, allowed, [&](runtime& r) {
    r.events.insert(*event = new CUevent_st);
    return cudaSuccess;
  });
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned flags = cudaEventDefault) {
  return cudaEventCreateWithFlags(event, flags);
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call(__func__, allowed, [&](runtime& r) {
    if (r.events.erase(event) == 0) return cudaErrorInvalidResourceHandle;
    delete event;
    return cudaSuccess;
  });
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr) {
  return call(__func__, allowed, [&](runtime& r) {
    const CUstream_st* s = r.find(stream);
    if (s == nullptr || r.events.count(event) == 0) return cudaErrorInvalidResourceHandle;
    if (s->capture != nullptr && s->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    event->time = std::chrono::steady_clock::now();
    event->capture = s->capture, event->clock = s->clock;
    event->work = s->work, event->n_before = s->work->given;
    return cudaSuccess;
  });
}
enum : unsigned { cudaEventRecordDefault = 0, cudaEventRecordExternal = 1 };
//! External, into a capturing stream: a node of the graph, which records when it is replayed.
inline cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (flags != cudaEventRecordExternal) return cudaEventRecord(event, stream);
  return call(__func__, allowed, [&](runtime& r) {
    if (r.events.count(event) == 0) return cudaErrorInvalidResourceHandle;
    return enqueue(r, stream, cudaGraphNodeTypeEventRecord,
                   [event] { event->time = std::chrono::steady_clock::now(); });
  });
}
//! A stream that waits for a capturing one joins its capture.
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned = 0) {
  return call(__func__, allowed, [&](runtime& r) {
    CUstream_st* s = r.find(stream);
    if (s == nullptr || r.events.count(event) == 0) return cudaErrorInvalidResourceHandle;
    if (event->capture == nullptr && s->capture == nullptr) {
      return enqueue(r, stream, cudaGraphNodeTypeEmpty,
                     [work = event->work, n = event->n_before] { work->run_until(n); });
    }
    if (event->capture == nullptr) return s->capture->invalid = true, cudaErrorStreamCaptureIsolation;
    if (s == &r.legacy) return event->capture->invalid = true, cudaErrorStreamCaptureImplicit;
    if (s->capture != nullptr && s->capture != event->capture) {
      s->capture->invalid = event->capture->invalid = true;
      return cudaErrorStreamCaptureMerge;
    }
    s->capture = event->capture;
    for (const auto& [other, count] : event->clock) {
      if (s->clock[other] < count) s->clock[other] = count;
    }
    return cudaSuccess;
  });
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call(__func__, forbidden, [&](runtime& r) {
    if (r.events.count(event) == 0) return cudaErrorInvalidResourceHandle;
    if (event->capture != nullptr) return cudaErrorCapturedEvent;
    return event->work->run_until(event->n_before), cudaSuccess;
  });
}
inline cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call(__func__, forbidden, [&](runtime& r) {
    if (r.events.count(event) == 0) return cudaErrorInvalidResourceHandle;
    return event->capture != nullptr ? cudaErrorCapturedEvent : query(*event->work, event->n_before);
  });
}
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  return call(__func__, allowed, [&](runtime& r) {
    if (r.events.count(from) == 0 || r.events.count(to) == 0) return cudaErrorInvalidResourceHandle;
    *ms = std::chrono::duration<float, std::milli>(to->time - from->time).count();
    return cudaSuccess;
  });
}

// ---- captures and graphs

inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call(__func__, allowed, [&](runtime& r) {
    CUstream_st* s = r.find(stream);
    if (s == nullptr) return cudaErrorInvalidResourceHandle;
    if (s == &r.legacy) return cudaErrorStreamCaptureUnsupported;
    if (s->capture != nullptr) return cudaErrorInvalidValue;
    s->capture = std::make_shared<capture>();
    s->capture->mode = mode, s->capture->origin = s, s->capture->owner = std::this_thread::get_id();
    s->clock.clear();
    return cudaSuccess;
  });
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return call(__func__, allowed, [&](runtime& r) {
    *graph = nullptr;
    CUstream_st* s = r.find(stream);
    if (s == nullptr) return cudaErrorInvalidResourceHandle;
    if (s->capture == nullptr) return cudaErrorInvalidValue;
    const auto capture = s->capture;
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->owner != std::this_thread::get_id()) {
      return cudaErrorStreamCaptureWrongThread;
    }
    if (capture->origin != s) return capture->invalid = true, cudaErrorStreamCaptureUnmatched;
    bool joined = true;
    for (CUstream_st* other : r.streams) {
      if (other->capture != capture) continue;
      joined = joined && s->clock[other] >= other->clock[other];
      other->capture = nullptr;
      if (other != s) other->clock.clear();
    }
    s->clock.clear();
    if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
    if (!joined) return cudaErrorStreamCaptureUnjoined;
    *graph = new CUgraph_st{std::move(capture->operations), std::move(capture->memory)};
    return cudaSuccess;
  });
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return call(__func__, allowed, [&](runtime& r) {
    const CUstream_st* s = r.find(stream);
    if (s == nullptr) return cudaErrorInvalidResourceHandle;
    *status = s->capture == nullptr  ? cudaStreamCaptureStatusNone
              : !s->capture->invalid ? cudaStreamCaptureStatusActive
                                     : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
  });
}
//! Gives as many nodes as there is room for, or without `nodes` their number alone.
inline cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  return call(__func__, allowed, [&](auto&) {
    std::size_t n = 0;
    for (; nodes != nullptr && n < *count && n < graph->operations.size(); ++n)
      nodes[n] = &graph->operations[n];
    *count = nodes != nullptr ? n : graph->operations.size();
    return cudaSuccess;
  });
}
inline cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  return call(__func__, allowed, [&](auto&) { return *type = node->type, cudaSuccess; });
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long = 0) {
  return call(__func__, allowed, [&](auto&) {
    if (graph == nullptr) return cudaErrorInvalidValue;
    *executable = new CUgraphExec_st{std::make_shared<const CUgraph_st>(*graph)};
    return cudaSuccess;
  });
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return call(__func__, allowed, [&](auto& r) {
    if (executable == nullptr) return cudaErrorInvalidValue;
    return enqueue(r, stream, cudaGraphNodeTypeGraph, [graph = executable->graph] {
      for (const auto& operation : graph->operations)
        operation.work();
    });
  });
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return call(__func__, allowed, [&](auto&) { return delete executable, cudaSuccess; });
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call(__func__, allowed, [&](auto&) { return delete graph, cudaSuccess; });
}

}  // namespace api

}  // namespace emulator::detail

using namespace emulator::detail::api;
