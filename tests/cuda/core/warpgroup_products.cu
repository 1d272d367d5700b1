// SPDX-License-Identifier: BSL-1.0
// Products of warpgroups against plain sums, with matrices that are written by hand where their descriptors say.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "cuda/support.cuh"
#include "espalier/config.hpp"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/matrix_descriptor.cuh"
#include "espalier/cuda/core/ptx.cuh"
#include "espalier/cuda/core/shared_memory.cuh"

namespace gpu = espalier::cuda;
namespace ptx = espalier::cuda::ptx;
using espalier_test::to_device;
using espalier_test::to_host;

namespace {

constexpr int threads = 128, n = 64;

// One warpgroup: scores = left * right^T, over 64 terms; sums = scores * right. All [64][64], numbers exact.
template <class NumberT>
__global__ void __launch_bounds__(ptx::has_warpgroup_products ? threads : 32)
    multiply(const NumberT* left, const NumberT* right, float* scores_out, float* sums_out) {
  if constexpr (ptx::has_warpgroup_products) {
    const auto thread = static_cast<int>(threadIdx.x);
    unsigned char* memory = gpu::shared_memory();
    memory += -ptx::address_of(memory) & 1023U;
    for (int i = thread; i < n * n; i += threads) {
      const int row = i / n, chunk = i % n / 8, at = 128 * row + 16 * (chunk ^ row % 8) + 2 * (i % 8);
      *reinterpret_cast<NumberT*>(memory + at) = left[i];
      *reinterpret_cast<NumberT*>(memory + 8192 + at) = right[i];
    }
    ptx::show_to_products();
    __syncthreads();

    const auto a = gpu::matrix_descriptor::at(ptx::address_of(memory)),
               b = gpu::matrix_descriptor::at(ptx::address_of(memory + 8192));
    float scores[8][4], sums[8][4] = {};
    ptx::products_begin(scores);
    ESPALIER_UNROLL
    for (int step = 0; step < 4; ++step) {
      const auto bytes = static_cast<std::uint32_t>(32 * step);
      ptx::start_product<NumberT>(scores, a.moved(bytes), b.moved(bytes), step > 0);
    }
    ptx::products_commit();
    ptx::products_wait(scores);
    std::uint32_t weights[4][4];
    ESPALIER_UNROLL
    for (int step = 0; step < 4; ++step) {
      ESPALIER_UNROLL
      for (int i = 0; i < 4; ++i)
        weights[step][i] =
            ptx::pack<NumberT>(scores[2 * step + i / 2][2 * (i % 2)], scores[2 * step + i / 2][2 * (i % 2) + 1]);
    }
    ptx::products_begin(sums, weights);
    ESPALIER_UNROLL
    for (int step = 0; step < 4; ++step)
      ptx::start_product<NumberT>(sums, weights[step], b.moved(static_cast<std::uint32_t>(2048 * step)));
    ptx::products_commit();
    ptx::products_wait(sums);
    ESPALIER_UNROLL
    for (int j = 0; j < 8; ++j) {
      ESPALIER_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int at = (thread / 32 * 16 + i / 2 * 8 + thread % 32 / 4) * n + 8 * j + 2 * (thread % 4) + i % 2;
        scores_out[at] = scores[j][i];
        sums_out[at] = sums[j][i];
      }
    }
  }
}

template <class NumberT>
void check_products() {
  cudaFuncAttributes attributes = {};
  gpu::require(cudaFuncGetAttributes(&attributes, multiply<NumberT>), "cudaFuncGetAttributes");
  if (attributes.maxThreadsPerBlock < threads) {
    WARN("Products of warpgroups are not compiled, or not for this device.");
    return;
  }
  // Few numbers other than zero, and small: scores and sums are exact in any order, scores in 8 bits, too.
  std::vector<NumberT> left(n * n), right(n * n);
  std::vector<float> a(n * n), b(n * n), scores(n * n), sums(n * n);
  for (int i = 0; i < n * n; ++i) {
    const int row = i / n, column = i % n;
    a[static_cast<std::size_t>(i)] = (5 * row + 3 * column) % 7 < 2 ? static_cast<float>(1 + row % 2) : 0.0F;
    b[static_cast<std::size_t>(i)] = (11 * row + column) % 5 == 0 ? static_cast<float>(column % 3 - 1) : 0.0F;
    left[static_cast<std::size_t>(i)] = static_cast<NumberT>(a[static_cast<std::size_t>(i)]);
    right[static_cast<std::size_t>(i)] = static_cast<NumberT>(b[static_cast<std::size_t>(i)]);
  }
  for (std::size_t row = 0; row < n; ++row) {
    for (std::size_t column = 0; column < n; ++column) {
      for (std::size_t k = 0; k < n; ++k)
        scores[row * n + column] += a[row * n + k] * b[column * n + k];
    }
    for (std::size_t column = 0; column < n; ++column) {
      for (std::size_t k = 0; k < n; ++k)
        sums[row * n + column] += scores[row * n + k] * b[k * n + column];
    }
  }
  const auto left_there = to_device(left), right_there = to_device(right);
  const auto got_scores = to_device(std::vector<float>(n * n)), got_sums = to_device(std::vector<float>(n * n));
  gpu::launch("multiply", multiply<NumberT>, {.threads = threads, .shared_bytes = 1024 + 2 * 8192}, nullptr,
              left_there.data(), right_there.data(), got_scores.data(), got_sums.data());
  CHECK(to_host(got_scores) == scores);
  CHECK(to_host(got_sums) == sums);
}

}  // namespace

TEST_CASE("Products of warpgroups are sums of products, with matrices where their descriptors say") {
  check_products<__half>();
  check_products<__nv_bfloat16>();
}

TEST_CASE("A descriptor is what the instruction reads") {
  const auto matrix = gpu::matrix_descriptor::at(0x7F400U);
  CHECK((matrix.bits & 0x3FFFU) == 0x3F40U);  // 18 bits of the address, in units of 16 bytes
  CHECK((matrix.bits >> 16 & 0x3FFFU) == 1);
  CHECK((matrix.bits >> 32 & 0x3FFFU) == 64);
  CHECK((matrix.bits >> 49 & 7U) == 0);
  CHECK(matrix.bits >> 62 == 1);
  CHECK(matrix.moved(2048).bits == matrix.bits + 128);
}
