// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/core/team.cuh"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "catch.hpp"
#include "cuda/support.cuh"
#include "espalier/core/weights.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"

namespace {

// What each thread found.
struct findings {
  double sum, first, second, again;
  float largest;
  std::int32_t smallest, token, last_token, told;
  std::uint32_t rank, size;
};

struct shared_row {
  const float* numbers;
  std::size_t n;
  espalier::cuda::team who;

  __device__ std::size_t size() const { return n; }
  __device__ float operator[](std::size_t i) const { return numbers[i]; }
  __device__ espalier::cuda::team team() const { return who; }
};

template <class NumberT>
__global__ void find(const NumberT* row, std::size_t n, double u, NumberT* scratch, findings* out) {
  espalier::cuda::team::turns turns;
  const espalier::cuda::team who(*reinterpret_cast<espalier::cuda::team::memory*>(espalier::cuda::shared_memory()),
                                 turns);
  const shared_row weights{row, n, who};
  findings f{};
  f.rank = who.rank();
  f.size = who.size();
  f.sum = who.sum_of(n, weights);
  const auto both = who.sums_of(
      n, [=](std::size_t i) { return row[i] * 3; }, weights);
  f.first = both.of[0];
  f.second = both.of[1];
  f.largest = who.reduce(row[who.rank() % n], [](float a, float b) { return a < b ? b : a; });
  f.token = espalier::detail::categorical(weights, u);
  f.smallest = who.reduce(-static_cast<std::int32_t>(who.rank()), [](int a, int b) { return a < b ? a : b; });
  f.told = who.once([&] { return f.token + 1; });
  // What all have written, all see.
  for (std::size_t i = who.rank(); i < n; i += who.size())
    scratch[i] = row[n - 1 - i];
  who.sync();
  f.again = who.sum_of(n, [=](std::size_t i) { return scratch[i]; });
  f.last_token = espalier::detail::categorical(weights, 1.0);
  out[who.rank()] = f;
}

std::vector<findings> found_by(unsigned blocks, unsigned threads, const std::vector<float>& row, double u) {
  const auto numbers = espalier_test::to_device(row);
  const espalier::cuda::device_array<float> scratch(row.size());
  const espalier::cuda::device_array<findings> out(std::size_t{blocks} * threads);
  out.fill_bytes(0xFF, nullptr);
  espalier::cuda::launch(
      "find", find<float>,
      {.grid = blocks, .threads = threads, .shared_bytes = sizeof(espalier::cuda::team::memory), .cluster = blocks},
      nullptr, numbers.data(), row.size(), u, scratch.data(), out.data());
  return espalier_test::to_host(out);
}

// Numbers of very different sizes, some of them 0.
std::vector<float> random_row(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> row(n);
  for (float& x : row)
    x = random() % 4 == 0 ? 0.0F : std::ldexp(static_cast<float>(random() % 65536), -static_cast<int>(random() % 30));
  return row;
}

}  // namespace

TEST_CASE("a team of threads finds what one thread of the host finds, bit for bit") {
  for (const std::size_t n : {1U, 5U, 33U, 63U, 1000U, 1024U, 1025U, 5000U, 151936U, 262144U, 300001U}) {
    const std::vector<float> row = random_row(n, static_cast<std::uint32_t>(n));
    for (const double u : {0.0, 0.3, 0.999999}) {
      const auto both = espalier::detail::alone().sums_of(
          n, [&](std::size_t i) { return row[i] * 3; }, row);
      const double sum = espalier::detail::mass(row);
      const std::vector<float> turned(row.rbegin(), row.rend());
      for (const auto& [blocks, threads] : {std::pair{1U, 32U}, {1U, 1024U}, {2U, 96U}, {8U, 256U}}) {
        if (n > 5000 && threads * blocks < 512) continue;
        INFO(n << " numbers, u = " << u << ", " << blocks << " blocks of " << threads);
        const auto found = found_by(blocks, threads, row, u);
        float largest = 0;
        for (std::size_t rank = 0; rank < found.size(); ++rank)
          largest = std::max(largest, row[rank % n]);
        for (std::size_t rank = 0; rank < found.size(); ++rank) {
          const findings& f = found[rank];
          REQUIRE(f.rank == rank);
          REQUIRE(f.size == found.size());
          REQUIRE(f.sum == sum);
          REQUIRE(f.first == both.of[0]);
          REQUIRE(f.second == both.of[1]);
          REQUIRE(f.again == espalier::detail::mass(turned));
          REQUIRE(f.largest == largest);
          REQUIRE(f.smallest == 1 - static_cast<std::int32_t>(found.size()));
          REQUIRE(f.token == espalier::detail::categorical(row, u));
          REQUIRE(f.last_token == espalier::detail::categorical(row, 1.0));
          REQUIRE(f.told == f.token + 1);
        }
      }
    }
  }
}

TEST_CASE("a team draws nothing where there is no weight") {
  for (const unsigned blocks : {1U, 8U}) {
    for (const std::size_t n : {1U, 2000U}) {
      const auto found = found_by(blocks, 64, std::vector<float>(n), 0.5);
      REQUIRE(found.front().token == -1);
      REQUIRE(found.back().token == -1);
      REQUIRE(found.back().sum == 0);
    }
  }
}
