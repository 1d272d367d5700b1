// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include "espalier/cuda/core/error.cuh"

namespace espalier::cuda {

//! How a kernel is spread over the device.
struct launch_shape {
  dim3 grid = 1;
  unsigned threads = 1;          //!< a block
  std::size_t shared_bytes = 0;  //!< dynamic shared memory of a block
  unsigned cluster = 1;  //!< blocks of a thread block cluster, along x; more than 1 needs compute capability 9.0
};

//! Shared memory that a block may use without asking for it.
inline constexpr std::size_t unasked_shared_bytes = 48 * 1024;

//! Launches a kernel, also into a graph that captures the stream. No synchronisation.
//!
//! Errors      cuda_error that names the kernel
template <class... ParametersT>
void launch(const char* name, void (*kernel)(ParametersT...), const launch_shape& shape, cudaStream_t stream,
            std::type_identity_t<ParametersT>... arguments) {
  if (shape.shared_bytes > unasked_shared_bytes) {
    // All that there is: another thread may launch the kernel with another size.
    int device = 0, most = 0;
    require(cudaGetDevice(&device), "cudaGetDevice");
    require(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
    require(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most), name);
  }
  if (shape.cluster > 8) require(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), name);
  cudaLaunchAttribute attribute = {};
  if (shape.cluster > 1) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = shape.cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = shape.cluster > 1 ? 1 : 0;
  require(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

}  // namespace espalier::cuda
