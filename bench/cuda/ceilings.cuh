// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "contest.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"

namespace bench {

static __global__ void do_nothing() {}

//! The most that this card can do, measured in the same run as the figures that are judged by it.
struct ceilings {
  samples copy;              //!< time of a copy inside the device, in us
  double copied_bytes = 0;   //!< bytes of that copy, read and written
  samples launch;            //!< time from event to event around a graph of one kernel that does nothing, in us
  samples further_launches;  //!< time of one more such kernel in the same graph, in us

  double bytes_per_us() const { return copied_bytes / copy.median(); }
  //! Microseconds that reading or writing so many bytes takes at the bandwidth of the copy.
  double reading(double bytes) const { return bytes / bytes_per_us(); }
  double one_launch() const { return launch.median(); }
};

inline ceilings measure_ceilings(const cache_flush& flush, int repetitions, bool tiny) {
  const std::size_t bytes = tiny ? std::size_t{1} << 16 : std::size_t{1} << 30;
  const espalier::cuda::device_array<unsigned char> from(bytes), to(bytes);
  from.fill_bytes(0x5A, nullptr);
  espalier::cuda::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const auto nothing = [](int n) {
    return [n](cudaStream_t s) {
      for (int i = 0; i < n; ++i)
        espalier::cuda::launch("do_nothing", do_nothing, {}, s);
    };
  };
  contest race(flush, repetitions);
  race.add({.key = "copy", .work = [&](cudaStream_t s) {
              espalier::cuda::require(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, s),
                                      "cudaMemcpyAsync");
            }});
  race.add({.key = "one", .work = nothing(1)});
  race.add({.key = "many", .work = nothing(101)});
  race.run();
  ceilings found;
  found.copy = race.of("copy");
  found.copied_bytes = 2 * static_cast<double>(bytes);
  found.launch = race.of("one");
  found.further_launches.add((race.of("many").median() - found.launch.median()) / 100);
  return found;
}

}  // namespace bench
