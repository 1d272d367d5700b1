// SPDX-License-Identifier: BSL-1.0
#pragma once

namespace espalier::cuda {

//! The dynamic shared memory of the block: all the shared memory that a kernel of this library uses, aligned to 16
//! bytes. A kernel reads it as one struct of its own, whose size it is launched with.
__device__ inline unsigned char* shared_memory() {
  extern __shared__ __align__(16) unsigned char espalier_shared_memory[];
  return espalier_shared_memory;
}

}  // namespace espalier::cuda
