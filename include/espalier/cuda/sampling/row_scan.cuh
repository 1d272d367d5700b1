// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/sampling/sampler.cu
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "espalier/core/sums.hpp"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/sampling/row_reader.cuh"
#include "espalier/cuda/sampling/row_selection.cuh"
#include "espalier/sampling/exponential.hpp"

namespace espalier::cuda::detail {

// The sum of the exponentials of one block of a row (1024 numbers), in two factors: mass * e^from is that sum times
// espalier::detail::scaled_exp_at_0.
struct block_mass {
  double mass;
  float from;
};

// Adds up the 64 running sums that 16 threads hold; sum 4 * l + a is sum[a] of thread l. Adds halves in the order of
// espalier::detail::one_thread, and returns the same sum in all 16 threads.
__device__ inline double sum_of_lanes(const float (&sum)[4]) {
  double last[4];
  for (int a = 0; a < 4; ++a) {
    float s = sum[a];
    for (int half = 8; half >= 2; half /= 2)
      s += __shfl_xor_sync(all_lanes, s, half);
    last[a] = static_cast<double>(s);
    last[a] += __shfl_xor_sync(all_lanes, last[a], 1);
  }
  return (last[0] + last[2]) + (last[1] + last[3]);
}

// Returns the largest x of 16 threads, in all of them.
__device__ inline float largest_of_lanes(float x) {
  for (int d = 8; d > 0; d /= 2)
    x = fmaxf(x, __shfl_xor_sync(all_lanes, x, d));
  return x;
}

// Reads one block of a row with 16 threads; `lane` is this thread's number among them. Each thread reads 16 times four
// numbers. Calls numbers(x, token) for each four numbers x, the first of which belongs to `token`, in order of tokens,
// and done(quarter) after every fourth of these calls. All loads are issued before the first number is looked at.
template <class NumberT, class NumbersF, class DoneF>
__device__ void read_block(const row_reader<NumberT>& row, std::int32_t block, std::int32_t lane,
                           const NumbersF& numbers, const DoneF& done) {
  using four = typename row_reader<NumberT>::four;
  const std::int32_t first = block * static_cast<std::int32_t>(espalier::detail::mass_block) + lane * 4;
  four words[16];
  row.load(first, words);
  const auto look_at = [&](std::int32_t quarter) {
    for (std::int32_t j = 0; j < 4; ++j) {
      float x[4];
      row.numbers(words[quarter * 4 + j], x);
      numbers(x, first + quarter * 256 + j * 64);
    }
    done(quarter);
  };
  // Written out instead of a loop, so that all words stay in registers.
  look_at(0);
  look_at(1);
  look_at(2);
  look_at(3);
}

// Returns the sum of the exponentials of a block, as espalier::top_tokens computes it, and calls put(quarter, number)
// with the largest number of each quarter that this thread reads. Raises `largest` to the largest number that this
// thread has read. The mass is NaN if a number is NaN or plus infinity. All 16 threads return the same. Called by whole
// warps, each with two blocks.
template <class NumberT, class PutF>
__device__ block_mass scan_block(const row_reader<NumberT>& row, std::int32_t block, std::int32_t lane, float& largest,
                                 const PutF& put) {
  const auto none = [](std::int32_t) {};
  float best = -INFINITY, best_of_quarter = -INFINITY;
  float sum[4] = {};
  read_block(
      row, block, lane,
      [&](const float(&x)[4], std::int32_t) {
        for (int a = 0; a < 4; ++a) {
          best_of_quarter = fmaxf(best_of_quarter, x[a]);
          sum[a] += espalier::detail::scaled_exp(x[a]);
        }
      },
      [&](std::int32_t quarter) {
        put(quarter, best_of_quarter);
        best = fmaxf(best, best_of_quarter);
        best_of_quarter = -INFINITY;
      });
  largest = fmaxf(largest, best);
  const double mass = sum_of_lanes(sum);
  best = largest_of_lanes(best);
  const bool is_plain = best >= espalier::detail::plain_from && best <= espalier::detail::plain_to && mass >= 0;
  if (__all_sync(all_lanes, is_plain)) return {mass, 0};
  // Seldom reached. Both halves of the warp read the numbers of their blocks again.
  const float reference = best == -INFINITY ? 0.0F : best;
  bool is_bad = false;
  float relative[4] = {};
  read_block(
      row, block, lane,
      [&](const float(&x)[4], std::int32_t) {
        for (int a = 0; a < 4; ++a) {
          is_bad = is_bad || !(x[a] < INFINITY);
          relative[a] += espalier::detail::exp2_of_minus((reference - x[a]) * 1.44269504F);
        }
      },
      none);
  const unsigned bad = __ballot_sync(all_lanes, is_bad);
  const double relative_mass = sum_of_lanes(relative) * static_cast<double>(espalier::detail::scaled_exp_at_0);
  if ((bad >> (threadIdx.x % 32 / 16 * 16) & 0xFFFFU) != 0) return {static_cast<double>(NAN), 0};
  if (is_plain) return {mass, 0};
  return {best == -INFINITY ? 0 : relative_mass, reference};
}

}  // namespace espalier::cuda::detail
