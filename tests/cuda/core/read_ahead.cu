// SPDX-License-Identifier: BSL-1.0
// Kernels that begin while the one before them ends, and what is asked for beforehand.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "cuda/support.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/ptx.cuh"
#include "espalier/cuda/core/read_ahead.cuh"

namespace gpu = espalier::cuda;
using espalier_test::to_device;
using espalier_test::to_host;

namespace {

__global__ void add_one(std::int32_t* numbers, std::int32_t n) {
  gpu::ptx::allow_next();
  gpu::ptx::await_previous();
  const auto i = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  // The neighbour's number is of another block of the kernel before: even and odd ones take turns.
  if (i < n) numbers[n + i] = numbers[(i + 1) % n] + 1;
}

__global__ void take_back(std::int32_t* numbers, std::int32_t n) {
  gpu::ptx::allow_next();
  gpu::ptx::await_previous();
  const auto i = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) numbers[i] = numbers[n + (i + n / 2) % n];
}

// own: [gridDim.y][gridDim.x], whether a block has work.
__global__ void ask(gpu::read_ahead next, std::int32_t n, std::int32_t* own) {
  const bool has_work = next.ask_beside(n);
  if (threadIdx.x == 0) own[blockIdx.y * gridDim.x + blockIdx.x] = has_work ? 1 : 0;
}

// Whether the first n blocks of each row of the grid have work, and no other.
bool first_have_work(const gpu::read_ahead& next, std::int32_t n, unsigned high) {
  const dim3 grid = next.grid_beside(n, high);
  if (grid.x == 0) return n == 0;
  const auto own = to_device(std::vector<std::int32_t>(std::size_t{grid.x} * grid.y, -1));
  gpu::launch("ask", ask, {.grid = grid, .threads = 64}, nullptr, next, n, own.data());
  const std::vector<std::int32_t> found = to_host(own);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] != (i % grid.x < static_cast<std::size_t>(n) ? 1 : 0)) return false;
  }
  return grid.y == high;
}

}  // namespace

TEST_CASE("Kernels that overlap see all that the ones before them wrote") {
  constexpr std::int32_t n = 20000;
  std::vector<std::int32_t> numbers(2 * n);
  for (std::int32_t i = 0; i < n; ++i)
    numbers[static_cast<std::size_t>(i)] = 7 * i;
  const auto device = to_device(numbers);
  const gpu::launch_shape shape{.grid = (n + 127) / 128, .threads = 128, .overlaps = true};
  constexpr std::int32_t rounds = 20;
  for (std::int32_t round = 0; round < rounds; ++round) {
    gpu::launch("add_one", add_one, shape, nullptr, device.data(), n);
    gpu::launch("take_back", take_back, shape, nullptr, device.data(), n);
  }
  const auto found = to_host(device);
  bool all = true;
  for (std::int32_t i = 0; i < n; ++i) {
    const std::int32_t from = (i + rounds * (n / 2 + 1)) % n;
    all = all && found[static_cast<std::size_t>(i)] == 7 * from + rounds;
  }
  CHECK(all);
}

TEST_CASE("What is asked for lies in the matrix, whatever its shape") {
  for (const std::size_t n_rows : {1, 5, 100, 6200}) {
    for (const std::size_t row_bytes : {16, 128, 400, 2048}) {
      const gpu::device_array<unsigned char> matrix(n_rows * row_bytes);
      for (const std::size_t most : {std::size_t{0}, std::size_t{4096}, std::size_t{1} << 24}) {
        const auto next = gpu::read_ahead::of(matrix.data(), n_rows, row_bytes, most);
        CHECK(next.n_rows * std::size_t{next.piece_bytes} <= most);
        CHECK(next.piece_bytes <= row_bytes);
        CHECK(next.piece_bytes % 16 == 0);
        for (const unsigned high : {1U, 3U}) {
          CHECK((next.grid_beside(7, high).x == 7) == (next.n_rows == 0));
          CHECK(first_have_work(next, 0, high));
          CHECK(first_have_work(next, 7, high));
        }
      }
      CHECK((gpu::read_ahead::of(matrix.data(), n_rows, row_bytes, std::size_t{1} << 24).n_rows > 0) ==
            (row_bytes >= 128));
    }
  }
  gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  // Rows that are not aligned are left alone.
  CHECK(gpu::read_ahead::of(nullptr, 10, 1000, 1 << 20).n_rows == 0);
}
