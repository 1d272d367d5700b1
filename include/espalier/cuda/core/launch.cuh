// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/core/arrays.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include "espalier/cuda/core/error.cuh"

namespace espalier::cuda {

//! The shape of a launch: how a kernel is spread over the device.
struct launch_shape {
  dim3 grid = 1;
  unsigned threads = 1;          //!< threads of a block
  std::size_t shared_bytes = 0;  //!< dynamic shared memory of a block
  unsigned cluster = 1;      //!< blocks of a thread block cluster, along x; more than 1 needs compute capability 9.0
  bool cooperative = false;  //!< all blocks are on the device at once, so that they may wait for each other
  bool overlaps = false;     //!< the kernel may begin while the kernel before it in the stream ends, if it was compiled
                             //!< for compute capability 9.0 or later. Each of its threads calls ptx::await_previous()
                             //!< before it reads or writes anything that another kernel writes or reads
};

//! Bytes of dynamic shared memory that a block may use without an attribute of the kernel.
inline constexpr std::size_t unasked_shared_bytes = 48 * 1024;

//! Bytes of dynamic shared memory that a block of the present device may use at most.
inline std::size_t most_shared_bytes() {
  int device = 0, most = 0;
  require(cudaGetDevice(&device), "cudaGetDevice");
  require(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  return static_cast<std::size_t>(most);
}

namespace detail {

// A launch_shape in the form of the runtime, with the attributes set that the kernel needs. Not copyable, since the
// configuration points into it.
class launch_request {
 public:
  template <class... ParametersT>
  launch_request(const char* name, void (*kernel)(ParametersT...), const launch_shape& shape, cudaStream_t stream) {
    if (shape.shared_bytes > unasked_shared_bytes) {
      // Allows all that the device has, since another thread may launch the kernel with another size.
      const auto most = static_cast<int>(most_shared_bytes());
      require(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most), name);
    }
    if (shape.cluster > 8)
      require(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), name);
    if (shape.cluster > 1) {
      cudaLaunchAttribute& cluster = attributes_[config_.numAttrs++];
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim.x = shape.cluster;
      cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    }
    if (shape.cooperative) {
      cudaLaunchAttribute& cooperative = attributes_[config_.numAttrs++];
      cooperative.id = cudaLaunchAttributeCooperative;
      cooperative.val.cooperative = 1;
    }
    if (shape.overlaps && may_overlap(kernel)) {
      cudaLaunchAttribute& overlapping = attributes_[config_.numAttrs++];
      overlapping.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      overlapping.val.programmaticStreamSerializationAllowed = 1;
    }
    config_.gridDim = shape.grid;
    config_.blockDim = dim3(shape.threads);
    config_.dynamicSmemBytes = shape.shared_bytes;
    config_.stream = stream;
    config_.attrs = attributes_;
  }
  launch_request(const launch_request&) = delete;
  launch_request& operator=(const launch_request&) = delete;

  const cudaLaunchConfig_t& config() const { return config_; }

 private:
  // True if the kernel was compiled for compute capability 9.0 or later. Code for earlier devices also runs on later
  // ones, but does not wait for the kernel before it.
  template <class KernelT>
  static bool may_overlap(KernelT kernel) {
    cudaFuncAttributes attributes = {};
    require(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
    return attributes.ptxVersion >= 90;
  }

  cudaLaunchAttribute attributes_[3] = {};
  cudaLaunchConfig_t config_ = {};
};

}  // namespace detail

//! Launches a kernel; a stream that is being captured takes it into its graph. No synchronisation.
//!
//! Errors      cuda_error that names the kernel, or the call that asks for the device's or the kernel's attributes
template <class... ParametersT>
void launch(const char* name, void (*kernel)(ParametersT...), const launch_shape& shape, cudaStream_t stream,
            std::type_identity_t<ParametersT>... arguments) {
  const detail::launch_request request(name, kernel, shape, stream);
  require(cudaLaunchKernelEx(&request.config(), kernel, arguments...), name);
}

//! Returns how many clusters of this shape the present device can hold at once: 0 if there is no room for one, or if
//! the device has none of this width.
//!
//! Errors      cuda_error if the attributes of the device or the kernel cannot be read or set
template <class... ParametersT>
int resident_clusters(const char* name, void (*kernel)(ParametersT...), const launch_shape& shape) {
  const detail::launch_request request(name, kernel, shape, nullptr);
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &request.config()) == cudaSuccess) return clusters;
  (void)cudaGetLastError();  // the device does not know clusters of this width
  return 0;
}

}  // namespace espalier::cuda
