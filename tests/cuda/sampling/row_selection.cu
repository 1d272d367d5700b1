// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/sampling/row_selection.cuh"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "../support.cuh"
#include "catch.hpp"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"

using namespace espalier_test;
namespace device = espalier::cuda;
namespace keys_of = espalier::cuda::detail;

namespace {

// Whether a bin begins where it should, and the bin before ends there.
template <class UnusedT>
__global__ void check_bins(std::int32_t* wrong, UnusedT) {
  for (auto b = static_cast<std::int32_t>(threadIdx.x); b < keys_of::number_bins::n;
       b += static_cast<std::int32_t>(blockDim.x)) {
    const std::uint32_t begin = keys_of::number_bins::begin(b);
    const bool is_right =
        keys_of::number_bins::of(begin) == b && (b == 0 || keys_of::number_bins::of(begin - 1) == b - 1);
    if (!is_right) atomicAdd(wrong, 1);
  }
}

template <class KeyT>
__global__ void rank_keys(const KeyT* keys, std::int32_t n, std::int32_t k, std::int32_t parts, KeyT* sorted) {
  auto& memory = *reinterpret_cast<keys_of::selection_memory*>(device::shared_memory());
  if (threadIdx.x == 0) {
    memory.clear_found();
    memory.n_own = static_cast<std::uint32_t>(n);
  }
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < n; i += static_cast<std::int32_t>(blockDim.x))
    memory.own[i] = keys[i];
  __syncthreads();
  const device::team who;
  for (std::int32_t part = 0; part < parts; ++part) {
    keys_of::gather_found(who, memory);
    keys_of::rank_found(memory, n, k, part, parts, [=](std::int32_t rank, std::uint64_t key) { sorted[rank] = key; });
    __syncthreads();
  }
}

}  // namespace

TEST_CASE("bins of numbers share out all numbers, in their order") {
  const auto wrong = to_device(std::vector<std::int32_t>(1));
  device::launch("check_bins", check_bins<int>, {.threads = 256}, nullptr, wrong.data(), 0);
  CHECK(to_host(wrong)[0] == 0);
}

TEST_CASE("found keys are ranked, by any block and in parts: spread, close together, equal numbers, one") {
  std::mt19937 random(3);
  const unsigned threads = GENERATE(256U, 512U, 1024U);
  for (const std::int32_t n : {1, 2, 33, 700, 2048}) {
    for (const int kind : {0, 1, 2, 3}) {
      for (const std::int32_t parts : {1, 8}) {
        std::vector<std::uint64_t> keys;
        for (std::int32_t i = 0; i < n; ++i) {
          const auto order = static_cast<std::uint32_t>(kind == 0   ? random()
                                                        : kind == 1 ? 3000000000U + random() % 1000
                                                        : kind == 2 ? 7U
                                                                    : random() % 2 * 0xFFFFFFFFU);
          keys.push_back(static_cast<std::uint64_t>(order) << keys_of::token_bits | static_cast<std::uint64_t>(i));
        }
        std::shuffle(keys.begin(), keys.end(), random);
        const std::int32_t k = n / 2 + 1;
        const auto given = to_device(keys);
        const device::device_array<std::uint64_t> sorted(static_cast<std::size_t>(k));
        sorted.fill_bytes(0, nullptr);
        device::launch("rank_keys", rank_keys<std::uint64_t>,
                       {.threads = threads, .shared_bytes = sizeof(keys_of::selection_memory)}, nullptr, given.data(),
                       n, k, parts, sorted.data());
        std::sort(keys.begin(), keys.end(), std::greater<>());
        keys.resize(static_cast<std::size_t>(k));
        INFO(n << " keys, kind " << kind << ", " << parts << " parts");
        CHECK(to_host(sorted) == keys);
      }
    }
  }
}
