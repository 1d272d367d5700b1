// SPDX-License-Identifier: BSL-1.0
#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

// Linked into every test that needs a GPU: where there is none it says so and ends with the status that ctest calls
// skipped. A process of its own asks: a test whose ranks are processes must not have used CUDA before it forks them.
namespace {

constexpr int skipped = 77;

struct presence {
  presence() {
    const pid_t asks = fork();
    if (asks == 0) {
      int devices = 0;
      const cudaError_t status = cudaGetDeviceCount(&devices);
      if (status == cudaSuccess && devices > 0) _exit(0);
      std::printf("SKIPPED: this test needs a GPU, and there is none (%s).\n", cudaGetErrorString(status));
      std::fflush(stdout);
      _exit(skipped);
    }
    int answer = 0;
    if (asks > 0 && waitpid(asks, &answer, 0) == asks && WIFEXITED(answer) && WEXITSTATUS(answer) == skipped)
      std::exit(skipped);
  }
} const found;

}  // namespace
