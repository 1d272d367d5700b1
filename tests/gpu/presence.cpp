// SPDX-License-Identifier: BSL-1.0
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

// Linked into every test that needs a GPU: where there is none it says so and ends with the status that ctest calls
// skipped.
namespace {

struct presence {
  presence() {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status == cudaSuccess && devices > 0) return;
    std::printf("SKIPPED: this test needs a GPU, and there is none (%s).\n", cudaGetErrorString(status));
    std::exit(77);
  }
} const found;

}  // namespace
