// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/llama/llama_backend.cu
#pragma once

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

namespace espalier::cuda::detail {

// True for the types of numbers that a transformer on the device computes with.
template <class NumberT>
inline constexpr bool is_model_number =
    std::is_same_v<NumberT, float> || std::is_same_v<NumberT, __half> || std::is_same_v<NumberT, __nv_bfloat16>;

template <class NumberT>
inline constexpr cudaDataType_t data_type_of = std::is_same_v<NumberT, float>    ? CUDA_R_32F
                                               : std::is_same_v<NumberT, __half> ? CUDA_R_16F
                                                                                 : CUDA_R_16BF;

// NT neighbouring numbers, which one instruction loads or stores.
template <class NumberT, int NT>
struct alignas(NT * sizeof(NumberT)) number_run {
  NumberT at[NT];
};

template <int NT, class NumberT>
__device__ inline number_run<NumberT, NT> load_run(const NumberT* from) {
  return *reinterpret_cast<const number_run<NumberT, NT>*>(from);
}

template <int NT, class NumberT>
__device__ inline void store_run(NumberT* to, const number_run<NumberT, NT>& run) {
  *reinterpret_cast<number_run<NumberT, NT>*>(to) = run;
}

// Returns to all lanes of a warp the sum of their numbers.
__device__ inline float sum_of_lanes(float x) {
  for (int other = 16; other > 0; other /= 2)
    x += __shfl_xor_sync(0xFFFFFFFFU, x, other);
  return x;
}

// Returns how many neighbouring numbers one instruction can move in rows of this width, if the rows follow one another
// in an array that begins on 256 bytes.
inline constexpr int run_of(int width) {
  return width % 4 == 0 ? 4 : 1;
}

// Calls visit(std::integral_constant<int, n>()) with n = run_of(width).
template <class VisitT>
void with_run_of(int width, VisitT&& visit) {
  if (run_of(width) == 4) {
    visit(std::integral_constant<int, 4>{});
  } else {
    visit(std::integral_constant<int, 1>{});
  }
}

}  // namespace espalier::cuda::detail
