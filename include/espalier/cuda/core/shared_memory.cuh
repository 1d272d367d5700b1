// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/core/arrays.cu
#pragma once

namespace espalier::cuda {

//! The dynamic shared memory of the block, aligned to 16 bytes: all the shared memory that a kernel of this library
//! uses. A kernel reads it as a struct of its own, and is launched with the size of that struct.
__device__ inline unsigned char* shared_memory() {
  extern __shared__ __align__(16) unsigned char espalier_shared_memory[];
  return espalier_shared_memory;
}

}  // namespace espalier::cuda
