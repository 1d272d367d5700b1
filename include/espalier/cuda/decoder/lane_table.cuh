// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/decoder/round_kernels.cuh"

namespace espalier::cuda::detail {

// Which lane of a round has which place: the device's table, and what the host has put there.
class lane_table {
 public:
  explicit lane_table(std::int32_t max_texts) : place_of_(static_cast<std::size_t>(max_texts)) {}

  // On the device, [lanes]: -1 for an empty lane.
  const std::int32_t* data() const { return place_of_.data(); }

  // These places, in this order; further lanes are empty. Nothing is launched where it is so already.
  void seat(std::span<const std::int32_t> places, std::int32_t lanes, cudaStream_t stream) {
    const auto same = static_cast<std::size_t>(lanes) == now_.size() &&
                      std::equal(places.begin(), places.end(), now_.begin()) &&
                      std::all_of(now_.begin() + std::ssize(places), now_.end(), [](std::int32_t p) { return p < 0; });
    if (same) return;
    now_.assign(static_cast<std::size_t>(lanes), -1);
    std::copy(places.begin(), places.end(), now_.begin());
    for (std::int32_t first = 0; first < lanes; first += some_lanes::max) {
      some_lanes some{first, (std::min)(lanes - first, some_lanes::max), {}};
      std::copy_n(now_.begin() + first, some.n, some.place);
      launch("set_lanes", set_lanes<>, {.threads = some_lanes::max}, stream, place_of_.data(), some);
    }
  }

  // Nothing is known of what the device has.
  void forget() { now_.clear(); }

 private:
  device_array<std::int32_t> place_of_;
  std::vector<std::int32_t> now_;
};

}  // namespace espalier::cuda::detail
