// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "emulator/vectors.hpp"

namespace emulator::detail {

//! The upper part of a number whose lower `shift` bits are cut off, rounded to nearest, ties to even.
constexpr std::uint32_t round_off(std::uint32_t bits, unsigned shift) {
  const std::uint32_t half = std::uint32_t{1} << (shift - 1);
  return (bits + half - 1 + (bits >> shift & 1U)) >> shift;
}

constexpr std::uint16_t to_bfloat16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return 0x7FFF;  // NaN, as the device writes it
  return static_cast<std::uint16_t>(round_off(bits, 16));
}

constexpr float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

constexpr std::uint16_t to_half(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 16 & 0x8000U, magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return 0x7FFF;
  std::uint32_t out = 0x7C00U;  // infinity
  if (magnitude < 0x33000000U) {
    out = 0;  // below half of the least subnormal
  } else if (magnitude < 0x38800000U) {
    out = round_off((magnitude & 0x7FFFFFU) | 0x800000U, 126U - (magnitude >> 23));
  } else if (magnitude < 0x47800000U) {
    out = round_off(magnitude - 0x38000000U, 13);
  }
  return static_cast<std::uint16_t>(sign | out);
}

constexpr float from_half(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16, exponent = bits >> 10 & 31U, fraction = bits & 0x3FFU;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000U | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
  return sign != 0 ? -magnitude : magnitude;
}

}  // namespace emulator::detail

// One 16-bit type, its pair, and the functions named after its stem. Arithmetic is the float's, rounded once.
// clang-format off
#define EMULATOR_SHORT_FLOAT(type, pair, stem, to, from)                                                         \
  struct type##_raw { unsigned short x; };                                                                       \
  struct type {                                                                                                  \
    unsigned short bits;                                                                                         \
    type() = default;                                                                                            \
    constexpr type(float x) : bits(emulator::detail::to(x)) {}                                                   \
    constexpr type(type##_raw raw) : bits(raw.x) {}                                                              \
    constexpr explicit type(double x) : type(static_cast<float>(x)) {}                                           \
    constexpr explicit type(int x) : type(static_cast<float>(x)) {}                                              \
    constexpr explicit type(unsigned x) : type(static_cast<float>(x)) {}                                         \
    constexpr operator float() const { return emulator::detail::from(bits); }                                    \
    constexpr type& operator+=(type b) { return *this = type(float(*this) + float(b)); }                         \
    constexpr type& operator-=(type b) { return *this = type(float(*this) - float(b)); }                         \
    constexpr type& operator*=(type b) { return *this = type(float(*this) * float(b)); }                         \
    constexpr type& operator/=(type b) { return *this = type(float(*this) / float(b)); }                         \
    friend constexpr type operator+(type a, type b) { return a += b; }                                           \
    friend constexpr type operator-(type a, type b) { return a -= b; }                                           \
    friend constexpr type operator*(type a, type b) { return a *= b; }                                           \
    friend constexpr type operator/(type a, type b) { return a /= b; }                                           \
    friend constexpr type operator-(type a) { return type(-float(a)); }                                          \
    friend constexpr bool operator==(type a, type b) { return float(a) == float(b); }                            \
    friend constexpr bool operator!=(type a, type b) { return float(a) != float(b); }                            \
    friend constexpr bool operator<(type a, type b) { return float(a) < float(b); }                              \
    friend constexpr bool operator>(type a, type b) { return float(a) > float(b); }                              \
    friend constexpr bool operator<=(type a, type b) { return float(a) <= float(b); }                            \
    friend constexpr bool operator>=(type a, type b) { return float(a) >= float(b); }                            \
  };                                                                                                             \
  struct alignas(4) pair {                                                                                       \
    type x, y;                                                                                                   \
    pair() = default;                                                                                            \
    constexpr pair(type low, type high) : x(low), y(high) {}                                                     \
    friend constexpr pair operator+(pair a, pair b) { return {a.x + b.x, a.y + b.y}; }                           \
    friend constexpr pair operator-(pair a, pair b) { return {a.x - b.x, a.y - b.y}; }                           \
    friend constexpr pair operator*(pair a, pair b) { return {a.x * b.x, a.y * b.y}; }                           \
  };                                                                                                             \
  constexpr type __float2##stem(float x) { return x; }                                                           \
  constexpr type __float2##stem##_rn(float x) { return x; }                                                      \
  constexpr float __##stem##2float(type x) { return x; }                                                         \
  constexpr type __ushort_as_##stem(unsigned short bits) { return type##_raw{bits}; }                            \
  constexpr unsigned short __##stem##_as_ushort(type x) { return x.bits; }                                       \
  constexpr float2 __##stem##22float2(pair p) { return {p.x, p.y}; }                                             \
  constexpr pair __floats2##stem##2_rn(float low, float high) { return {low, high}; }                            \
  constexpr pair __float22##stem##2_rn(float2 p) { return {p.x, p.y}; }                                          \
  constexpr pair __float2##stem##2_rn(float x) { return {x, x}; }                                                \
  constexpr pair __##stem##2##stem##2(type x) { return {x, x}; }                                                 \
  constexpr pair __halves2##stem##2(type low, type high) { return {low, high}; }                                 \
  constexpr type __low2##stem(pair p) { return p.x; }                                                            \
  constexpr type __high2##stem(pair p) { return p.y; }                                                           \
  constexpr float __low2float(pair p) { return p.x; }                                                            \
  constexpr float __high2float(pair p) { return p.y; }                                                           \
  constexpr type __hadd(type a, type b) { return a + b; }                                                        \
  constexpr type __hsub(type a, type b) { return a - b; }                                                        \
  constexpr type __hmul(type a, type b) { return a * b; }                                                        \
  constexpr type __hdiv(type a, type b) { return a / b; }                                                        \
  constexpr pair __hadd2(pair a, pair b) { return a + b; }                                                       \
  constexpr pair __hmul2(pair a, pair b) { return a * b; }                                                       \
  inline type __hfma(type a, type b, type c) { return static_cast<float>(std::fma(double(float(a)), double(float(b)), double(float(c)))); } \
  inline pair __hfma2(pair a, pair b, pair c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }         \
  constexpr bool __hisnan(type x) { return x != x; }                                                             \
  constexpr bool __heq(type a, type b) { return a == b; }                                                        \
  constexpr bool __hlt(type a, type b) { return a < b; }                                                         \
  constexpr bool __hgt(type a, type b) { return a > b; }                                                         \
  constexpr type __hmax(type a, type b) { return __hisnan(a) || a < b ? b : a; }                                 \
  constexpr type __hmin(type a, type b) { return __hisnan(a) || b < a ? b : a; }

EMULATOR_SHORT_FLOAT(__half, __half2, half, to_half, from_half)
EMULATOR_SHORT_FLOAT(__nv_bfloat16, __nv_bfloat162, bfloat16, to_bfloat16, from_bfloat16)
#undef EMULATOR_SHORT_FLOAT
// clang-format on

using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;
