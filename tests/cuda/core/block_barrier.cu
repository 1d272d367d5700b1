// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/core/block_barrier.cuh"

#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "cuda/support.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"

namespace gpu = espalier::cuda;

namespace {

constexpr int rounds = 9;

// Each round a block adds up what all blocks wrote in the round before, and writes one more than its number to that.
template <class BarrierT>
__global__ void add_up(unsigned* arrivals, std::uint64_t* of_block, std::uint64_t* sums) {
  BarrierT barrier(arrivals);
  std::uint64_t sum = 0;
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x == 31) of_block[blockIdx.x] = sum + blockIdx.x + 1;
    barrier.arrive();
    barrier.wait();
    sum = 0;
    for (unsigned b = 0; b < gridDim.x; ++b)
      sum += of_block[b];
    barrier.arrive();
    barrier.wait();
  }
  sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

template <class BarrierT>
void check_sums(unsigned blocks, bool cluster) {
  constexpr unsigned threads = 64;
  const gpu::device_array<unsigned> arrivals(1);
  const gpu::device_array<std::uint64_t> of_block(blocks), sums(blocks * threads);
  arrivals.fill_bytes(0, nullptr);
  std::uint64_t expected = 0;
  for (int round = 0; round < rounds; ++round)
    expected = blocks * expected + blocks * (blocks + 1) / 2;
  for (int launches = 0; launches < 3; ++launches) {
    sums.fill_bytes(0, nullptr);
    gpu::launch("add_up", add_up<BarrierT>,
                {.grid = blocks, .threads = threads, .cluster = cluster ? blocks : 1, .cooperative = !cluster}, nullptr,
                arrivals.data(), of_block.data(), sums.data());
    CHECK(espalier_test::to_host(sums) == std::vector<std::uint64_t>(blocks * threads, expected));
  }
}

}  // namespace

TEST_CASE("After a barrier of a cooperative grid every block sees what all have written") {
  for (const unsigned blocks : {1U, 2U, 13U})
    check_sums<gpu::grid_barrier>(blocks, false);
}

TEST_CASE("After a barrier of a cluster every block sees what all have written") {
  check_sums<gpu::cluster_barrier>(1, true);
  int device = 0, clusters = 0;
  gpu::require(cudaGetDevice(&device), "cudaGetDevice");
  gpu::require(cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device), "cudaDeviceGetAttribute");
  for (const unsigned blocks : {2U, 8U}) {
    if (clusters != 0) check_sums<gpu::cluster_barrier>(blocks, true);
  }
}
