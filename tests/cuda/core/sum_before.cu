// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/core/sum_before.cuh"

#include <cstdint>
#include <vector>

#include "../support.cuh"
#include "catch.hpp"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"

namespace device = espalier::cuda;
using namespace espalier_test;

namespace {

// Twice, so that the memory is used again.
template <class SumT>
__global__ void add_up(const std::int32_t* numbers, SumT* sums) {
  auto& shared = *reinterpret_cast<device::warp_sums*>(device::shared_memory());
  const std::int32_t own = numbers[threadIdx.x];
  const SumT once = device::sum_before(own, shared);
  __syncthreads();
  const SumT twice = device::sum_before(2 * own, shared);
  sums[threadIdx.x] = {twice.before - once.before, twice.all - once.all};
}

}  // namespace

TEST_CASE("sums over the threads before, in blocks of any size") {
  for (const unsigned threads : {32U, 64U, 96U, 256U, 544U, 1024U}) {
    std::vector<std::int32_t> numbers;
    for (unsigned i = 0; i < threads; ++i)
      numbers.push_back(static_cast<std::int32_t>(i * 7919 % 101) - 20);
    const auto given = to_device(numbers);
    const device::device_array<device::running_sum> sums(threads);
    device::launch("add_up", add_up<device::running_sum>,
                   {.threads = threads, .shared_bytes = sizeof(device::warp_sums)}, nullptr, given.data(), sums.data());
    const auto found = to_host(sums);
    std::int32_t before = 0, all = 0;
    for (const std::int32_t x : numbers)
      all += x;
    for (unsigned i = 0; i < threads; ++i) {
      INFO("thread " << i << " of " << threads);
      REQUIRE(found[i].before == before);
      REQUIRE(found[i].all == all);
      before += numbers[i];
    }
  }
}
