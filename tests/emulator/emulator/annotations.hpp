// SPDX-License-Identifier: BSL-1.0
#pragma once

// CUDA's annotations as plain C++. __CUDACC__ and __CUDA_ARCH__ stay undefined: to the code this is a host compiler.

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __forceinline__ __inline__ __attribute__((always_inline))

// Empty, since the standard library writes __attribute__((__noinline__)), which must still mean something valid.
#define __noinline__

// Kernels reach shared memory through espalier::cuda::shared_memory() alone, which the emulator replaces.
#define __shared__ static_assert(false, "take shared memory from espalier::cuda::shared_memory()");
