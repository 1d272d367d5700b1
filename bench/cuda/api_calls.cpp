// SPDX-License-Identifier: BSL-1.0
#include "api_calls.hpp"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <utility>

#if __has_include("emulator/runtime.hpp")

// The emulated device of the tests counts calls itself.
namespace bench {

std::map<std::string, int> api_calls() {
  auto& counted = emulator::detail::the_runtime().calls;
  const std::map<std::string, int> found(counted.begin(), counted.end());
  counted.clear();
  return found;
}

}  // namespace bench

#else

// Functions that the linker puts in the place of the runtime's (--wrap). They count each call and pass it on.
namespace {

struct counter {
  const char* name;
  std::atomic<int> calls{0};
  counter* next;

  explicit counter(const char* function) : name(function), next(first()) { first() = this; }
  static counter*& first() {
    static counter* one = nullptr;
    return one;
  }
};

}  // namespace

#define ESPALIER_COUNTED(function, parameters, arguments) \
  extern "C" cudaError_t __real_##function parameters;    \
  extern "C" cudaError_t __wrap_##function parameters;    \
  extern "C" cudaError_t __wrap_##function parameters {   \
    static counter here(#function);                       \
    ++here.calls;                                         \
    return __real_##function arguments;                   \
  }

ESPALIER_COUNTED(cudaGraphLaunch, (cudaGraphExec_t graph, cudaStream_t stream), (graph, stream))
ESPALIER_COUNTED(cudaLaunchKernelExC, (const cudaLaunchConfig_t* config, const void* kernel, void** arguments),
                 (config, kernel, arguments))
ESPALIER_COUNTED(cudaMemcpy, (void* to, const void* from, std::size_t n, cudaMemcpyKind kind), (to, from, n, kind))
ESPALIER_COUNTED(cudaMemcpyAsync, (void* to, const void* from, std::size_t n, cudaMemcpyKind kind, cudaStream_t stream),
                 (to, from, n, kind, stream))
ESPALIER_COUNTED(cudaMemsetAsync, (void* to, int value, std::size_t n, cudaStream_t stream), (to, value, n, stream))
ESPALIER_COUNTED(cudaMalloc, (void** to, std::size_t n), (to, n))
ESPALIER_COUNTED(cudaFree, (void* from), (from))
ESPALIER_COUNTED(cudaStreamSynchronize, (cudaStream_t stream), (stream))
ESPALIER_COUNTED(cudaDeviceSynchronize, (), ())
ESPALIER_COUNTED(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
ESPALIER_COUNTED(cudaEventSynchronize, (cudaEvent_t event), (event))
ESPALIER_COUNTED(cudaStreamBeginCapture, (cudaStream_t stream, cudaStreamCaptureMode mode), (stream, mode))

namespace bench {

std::map<std::string, int> api_calls() {
  std::map<std::string, int> found;
  for (counter* c = counter::first(); c != nullptr; c = c->next) {
    if (const int n = c->calls.exchange(0); n > 0) found[c->name] = n;
  }
  return found;
}

}  // namespace bench

#endif
