// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/elementwise.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__) || defined(__FMA__) || defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

//! Vectors of float in the width that the compiler flags allow. Every translation unit of a program that includes
//! this must be compiled with the same architecture flags, as with any header-only code that depends on them.
namespace espalier::detail {

#if defined(__AVX512F__)
inline constexpr int simd_lanes = 16;
inline constexpr int simd_registers = 32;
#elif defined(__AVX__)
inline constexpr int simd_lanes = 8;
inline constexpr int simd_registers = 16;
#elif defined(__aarch64__)
inline constexpr int simd_lanes = 4;
inline constexpr int simd_registers = 32;
#else
inline constexpr int simd_lanes = 4;
inline constexpr int simd_registers = 16;
#endif

typedef float simd_float __attribute__((vector_size(simd_lanes * sizeof(float))));
typedef std::int32_t simd_int __attribute__((vector_size(simd_lanes * sizeof(float))));
typedef std::uint16_t simd_half __attribute__((vector_size(simd_lanes * sizeof(std::uint16_t))));
typedef std::int8_t simd_byte __attribute__((vector_size(simd_lanes)));

[[gnu::always_inline]] inline simd_float simd_load(const float* from) {
  simd_float value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

[[gnu::always_inline]] inline void simd_store(float* to, simd_float value) {
  std::memcpy(to, &value, sizeof value);
}

[[gnu::always_inline]] inline simd_float simd_broadcast(float value) {
  return value - simd_float{};
}

// Loads the first n lanes; the others are zero. 0 <= n <= lanes.
[[gnu::always_inline]] inline simd_float simd_load_first(const float* from, int n) {
  simd_float value{};
  std::memcpy(&value, from, static_cast<std::size_t>(n) * sizeof(float));
  return value;
}

[[gnu::always_inline]] inline void simd_store_first(float* to, simd_float value, int n) {
  std::memcpy(to, &value, static_cast<std::size_t>(n) * sizeof(float));
}

// Returns a * b + c. The compiler flags decide whether that is one rounding or two. All kernels call this function, so
// they all round alike, and a row's numbers do not depend on which kernel computed it.
[[gnu::always_inline]] inline simd_float multiply_add(simd_float a, simd_float b, simd_float c) {
#if defined(__AVX512F__)
  return static_cast<simd_float>(
      _mm512_fmadd_ps(static_cast<__m512>(a), static_cast<__m512>(b), static_cast<__m512>(c)));
#elif defined(__AVX__) && defined(__FMA__)
  return static_cast<simd_float>(
      _mm256_fmadd_ps(static_cast<__m256>(a), static_cast<__m256>(b), static_cast<__m256>(c)));
#elif defined(__aarch64__)
  return static_cast<simd_float>(
      vfmaq_f32(static_cast<float32x4_t>(c), static_cast<float32x4_t>(a), static_cast<float32x4_t>(b)));
#else
  return a * b + c;
#endif
}

[[gnu::always_inline]] inline simd_float simd_max(simd_float a, simd_float b) {
  return a > b ? a : b;
}

// Returns a vector whose lane i is lane (i + DistanceT) % simd_lanes of `value`.
template <int DistanceT, std::size_t... Is>
[[gnu::always_inline]] inline simd_float simd_rotated(simd_float value, std::index_sequence<Is...>) {
  return __builtin_shufflevector(value, value, static_cast<int>((Is + DistanceT) % simd_lanes)...);
}

// Returns the sum of the lanes, which are added pairwise in one fixed order.
template <int DistanceT = simd_lanes / 2>
[[gnu::always_inline]] inline float simd_sum(simd_float value) {
  if constexpr (DistanceT == 0) {
    return value[0];
  } else {
    return simd_sum<DistanceT / 2>(value +
                                   simd_rotated<DistanceT>(value, std::make_index_sequence<std::size_t{simd_lanes}>{}));
  }
}

template <int DistanceT = simd_lanes / 2>
[[gnu::always_inline]] inline float simd_greatest(simd_float value) {
  if constexpr (DistanceT == 0) {
    return value[0];
  } else {
    return simd_greatest<DistanceT / 2>(
        simd_max(value, simd_rotated<DistanceT>(value, std::make_index_sequence<std::size_t{simd_lanes}>{})));
  }
}

// Loads BF16 numbers, which are the upper halves of floats.
[[gnu::always_inline]] inline simd_float simd_from_bf16(const void* from) {
  simd_half halves;
  std::memcpy(&halves, from, sizeof halves);
  const simd_int bits = __builtin_convertvector(halves, simd_int) << 16;
  simd_float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

[[gnu::always_inline]] inline simd_float simd_from_f16(const void* from) {
#if defined(__AVX512F__)
  __m256i halves;
  std::memcpy(&halves, from, sizeof halves);
  return static_cast<simd_float>(_mm512_maskz_cvtph_ps(0xFFFF, halves));
#elif defined(__AVX__) && defined(__F16C__)
  __m128i halves;
  std::memcpy(&halves, from, sizeof halves);
  return static_cast<simd_float>(_mm256_cvtph_ps(halves));
#else
  simd_half halves;
  std::memcpy(&halves, from, sizeof halves);
  const simd_int bits = __builtin_convertvector(halves, simd_int), magnitude = bits & 0x7FFF, shifted = magnitude << 13;
  simd_float value;
  std::memcpy(&value, &shifted, sizeof value);
  value *= 0x1p112F;  // moves the exponent from F16's bias to F32's
  simd_int result;
  std::memcpy(&result, &value, sizeof result);
  result = magnitude >= 0x7C00 ? shifted | 0x7F800000 : result;
  result |= (bits & 0x8000) << 16;
  std::memcpy(&value, &result, sizeof value);
  return value;
#endif
}

[[gnu::always_inline]] inline simd_float simd_from_int8(const void* from) {
  simd_byte bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(__builtin_convertvector(bytes, simd_int), simd_float);
}

// Returns e^x within 2 units in the last place; 0 below -87.3; e^88.3 above 88.3; NaN for NaN.
//
// Source: the polynomial of Cephes' expf.
[[gnu::always_inline]] inline simd_float simd_exp(simd_float x) {
  const simd_float low = simd_broadcast(-87.3F);
  const simd_float high = simd_broadcast(88.3F);
  const simd_float clamped = x > high ? high : (x < low ? low : x);
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const simd_float magic = simd_broadcast(12582912.0F);
  const simd_float shifted = multiply_add(clamped, simd_broadcast(1.44269504F), magic);
  const simd_float n = shifted - magic;
  simd_float r = multiply_add(n, simd_broadcast(-0.693359375F), clamped);
  r = multiply_add(n, simd_broadcast(2.12194440e-4F), r);
  simd_float p = simd_broadcast(1.9875691500e-4F);
  p = multiply_add(p, r, simd_broadcast(1.3981999507e-3F));
  p = multiply_add(p, r, simd_broadcast(8.3334519073e-3F));
  p = multiply_add(p, r, simd_broadcast(4.1665795894e-2F));
  p = multiply_add(p, r, simd_broadcast(1.6666665459e-1F));
  p = multiply_add(p, r, simd_broadcast(5.0000001201e-1F));
  p = multiply_add(p, r * r, r) + 1.0F;
  simd_int exponent;
  std::memcpy(&exponent, &shifted, sizeof exponent);
  // The shift drops the bits of the number that was added for rounding.
  simd_int bits;
  std::memcpy(&bits, &p, sizeof bits);
  bits += exponent << 23;
  simd_float result;
  std::memcpy(&result, &bits, sizeof result);
  const simd_float zero{};
  result = x < low ? zero : result;
  return x == x ? result : x;
}

template <std::size_t... Is>
[[gnu::always_inline]] inline simd_float interleave_low(simd_float a, simd_float b, std::index_sequence<Is...>) {
  return __builtin_shufflevector(a, b, static_cast<int>(Is / 2 + (Is % 2) * simd_lanes)...);
}

template <std::size_t... Is>
[[gnu::always_inline]] inline simd_float interleave_high(simd_float a, simd_float b, std::index_sequence<Is...>) {
  return __builtin_shufflevector(a, b, static_cast<int>(Is / 2 + simd_lanes / 2 + (Is % 2) * simd_lanes)...);
}

// Transposes a square of lanes by lanes in log2(lanes) perfect shuffles.
[[gnu::always_inline]] inline void simd_transpose(simd_float (&rows)[simd_lanes]) {
  constexpr auto indices = std::make_index_sequence<simd_lanes>{};
  simd_float mixed[simd_lanes];
#pragma GCC unroll 8
  for (int stage = 1; stage < simd_lanes; stage *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < simd_lanes / 2; ++i) {
      mixed[2 * i] = interleave_low(rows[i], rows[i + simd_lanes / 2], indices);
      mixed[2 * i + 1] = interleave_high(rows[i], rows[i + simd_lanes / 2], indices);
    }
#pragma GCC unroll 16
    for (int i = 0; i < simd_lanes; ++i)
      rows[i] = mixed[i];
  }
}

}  // namespace espalier::detail
