// SPDX-License-Identifier: BSL-1.0
#pragma once

// Stands in for the library's header of the same name, whose `extern
// __shared__` no host compiler has.

#include <cuda_runtime.h>

namespace espalier::cuda {

inline unsigned char* shared_memory() {
  return static_cast<unsigned char*>(emulator_shared_memory());
}

}  // namespace espalier::cuda
