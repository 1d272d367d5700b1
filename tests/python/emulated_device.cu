// SPDX-License-Identifier: BSL-1.0
// Memory and streams of the emulated device for test_device.py, in one library with the verifiers that run on it.
#include <cuda_runtime.h>

#include <cstddef>

#define ESPALIER_OF_TEST extern "C" __attribute__((visibility("default")))

ESPALIER_OF_TEST void* emulated_copy(const void* from, std::size_t bytes) {
  void* made = nullptr;
  if (cudaMalloc(&made, bytes) != cudaSuccess) return nullptr;
  return cudaMemcpy(made, from, bytes, cudaMemcpyHostToDevice) == cudaSuccess ? made : nullptr;
}

ESPALIER_OF_TEST void emulated_free(void* memory) {
  (void)cudaFree(memory);
}

// Writes to memory of the device once the stream comes to it, from a copy that is made at once.
ESPALIER_OF_TEST int emulated_write(void* to, const void* from, std::size_t bytes, void* stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream));
}

ESPALIER_OF_TEST void* emulated_stream() {
  cudaStream_t made = nullptr;
  return cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking) == cudaSuccess ? made : nullptr;
}

ESPALIER_OF_TEST std::size_t emulated_allocations() {
  return emulator::allocations();
}
