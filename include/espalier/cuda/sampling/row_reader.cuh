// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/sampling/sampler.cu
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

namespace espalier::cuda::detail {

// The type that holds one number of a row in memory, and the type of four such numbers read at once.
template <class NumberT>
struct packed;

template <>
struct packed<float> {
  using word = float;
  using four = float4;
  static constexpr word minus_infinity = -INFINITY;
  __device__ static float number(word w) { return w; }
};
template <>
struct packed<__half> {
  using word = unsigned short;
  using four = ushort4;
  static constexpr word minus_infinity = 0xFC00;
  __device__ static float number(word w) { return __half2float(__ushort_as_half(w)); }
};
template <>
struct packed<__nv_bfloat16> {
  using word = unsigned short;
  using four = ushort4;
  static constexpr word minus_infinity = 0xFF80;
  __device__ static float number(word w) { return __uint_as_float(static_cast<unsigned>(w) << 16); }
};

// Returns number i of a row, as a float.
template <class NumberT>
__device__ float number_in(const NumberT* row, std::size_t i) {
  return packed<NumberT>::number(reinterpret_cast<const typename packed<NumberT>::word*>(row)[i]);
}

// A row of numbers, read as floats times a scale; past the end it reads minus infinity. Rows whose address is a
// multiple of four numbers are read four numbers at a time, others one by one.
template <class NumberT>
class row_reader {
 public:
  using four = typename packed<NumberT>::four;

  __device__ row_reader(const NumberT* row, std::int32_t size, float scale = 1)
      : row_(row), size_(size), scale_(scale), is_aligned_(reinterpret_cast<std::uintptr_t>(row) % sizeof(four) == 0) {}

  __device__ std::int32_t size() const { return size_; }
  __device__ const NumberT* data() const { return row_; }

  // Loads nN times four numbers: those at i, i + 64, i + 128 and so on. Pre: i is a multiple of 4.
  template <std::int32_t nN>
  __device__ void load(std::int32_t i, four (&words)[nN]) const {
    if (is_aligned_ && i + (nN - 1) * 64 + 4 <= size_) {
      for (std::int32_t j = 0; j < nN; ++j)
        words[j] = *reinterpret_cast<const four*>(row_ + i + j * 64);
    } else {
      for (std::int32_t j = 0; j < nN; ++j, i += 64)
        words[j] = {word(i), word(i + 1), word(i + 2), word(i + 3)};
    }
  }
  // Writes the four numbers that `words` holds, times the scale, to x.
  __device__ void numbers(const four& words, float (&x)[4]) const {
    x[0] = packed<NumberT>::number(words.x) * scale_;
    x[1] = packed<NumberT>::number(words.y) * scale_;
    x[2] = packed<NumberT>::number(words.z) * scale_;
    x[3] = packed<NumberT>::number(words.w) * scale_;
  }
  __device__ float operator[](std::int32_t i) const { return packed<NumberT>::number(word(i)) * scale_; }

 private:
  using word_type = typename packed<NumberT>::word;

  __device__ word_type word(std::int32_t i) const {
    return i < size_ ? reinterpret_cast<const word_type*>(row_)[i] : packed<NumberT>::minus_infinity;
  }

  const NumberT* row_;
  std::int32_t size_;
  float scale_;
  bool is_aligned_;
};

}  // namespace espalier::cuda::detail
