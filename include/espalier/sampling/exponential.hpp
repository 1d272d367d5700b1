// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/config.hpp"

//! Exponentials and logarithms that decide about tokens, with the same bits on host and device: their sums, products
//! and quotients are rounded one by one, provided that the compiler does not fuse them.

namespace espalier::detail {

// 2^-x for x >= 0; 0 from 2^-126.5 downwards. Relative error below 2e-7 above that. It has no branches, so that loops
// over it vectorise: that is why x is clamped by its bits, as an integer. Source of the polynomial: the best of degree
// 6 in relative error that is 1 at 0, by Remez.
ESPALIER_HOST_DEVICE inline float exp2_of_minus(float x) {
  constexpr std::int32_t last = 0x42FE0000;  // the bits of 127
  const auto bits = __builtin_bit_cast(std::int32_t, x);
  const float clamped = __builtin_bit_cast(float, bits < last ? bits : last);
  const auto n = static_cast<std::int32_t>(clamped + 0.5F);
  const float r = static_cast<float>(n) - clamped;
  float y = 1.5594677550e-4F;
  y = y * r + 1.3406643905e-3F;
  y = y * r + 9.6176929749e-3F;
  y = y * r + 5.5503105510e-2F;
  y = y * r + 2.4022652783e-1F;
  y = y * r + 6.9314721497e-1F;
  y = y * r + 1.0F;
  return y * __builtin_bit_cast(float, (127 - n) << 23);
}

inline constexpr float scaled_exp_at_0 = 120.6233F;  // scaled_exp(0)

// Constants of scaled_exp(): 1 / ln 2, ln 2 in two parts, and the coefficients of the polynomial.
struct scaled_exp_terms {
  static constexpr float per_ln2 = 1.44269504F, ln2_high = 0.693359375F, ln2_low = -2.12194440e-4F;
  static constexpr float fourth = 5.0538945F, third = 20.105055F, second = 60.310623F, first = 120.62327F;
};

// e^x * scaled_exp_at_0, for x up to 60. NaN gives NaN; minus infinity, and all x below -87.69, give 0. Relative error
// below 2.5e-7 elsewhere. Source of the polynomial: the best of degree 5 in relative error that is 1 at 0, by linear
// programming, scaled so that its highest coefficient is 1. Source of the two parts of ln 2: Cody and Waite 1980.
ESPALIER_HOST_DEVICE inline float scaled_exp(float x) {
  using terms = scaled_exp_terms;
  // Adding `rounding` rounds to an integer, and leaves it plus the exponent's bias in the low bits.
  constexpr float zero_exponent = 12582912.0F;
  constexpr std::int32_t zero_exponent_bits = 0x4B400000;
  constexpr float rounding = zero_exponent + 127.0F;
  const float from = x < -100.0F ? -100.0F : x;
  const float s = from * terms::per_ln2 + rounding;
  const float n = s - rounding;
  const float r = (from - n * terms::ln2_high) - n * terms::ln2_low;
  float y = r + terms::fourth;
  y = y * r + terms::third;
  y = y * r + terms::second;
  y = y * r + terms::first;
  y = y * r + scaled_exp_at_0;
  const auto bits = __builtin_bit_cast(std::int32_t, s);
  const auto clamped = static_cast<std::uint32_t>(bits > zero_exponent_bits ? bits : zero_exponent_bits);
  return y * __builtin_bit_cast(float, clamped << 23);
}

inline constexpr double ln2_high = 6.93147180369123816490e-01;  // its low 32 bits are zero
inline constexpr double ln2_low = 1.90821492927058770002e-10;

// e^-x for x >= 0; 0 from e^-700 downwards. Relative error below 1e-15 above that.
ESPALIER_HOST_DEVICE inline double exp_of_minus(double x) {
  if (!(x < 700)) return 0;
  const auto n = static_cast<std::int64_t>(x * 1.44269504088896338700 + 0.5);
  const double r = (static_cast<double>(n) * ln2_high - x) + static_cast<double>(n) * ln2_low;
  double y = 1;
  for (int i = 14; i > 0; --i)
    y = y * r / i + 1;
  return y * __builtin_bit_cast(double, (1023 - n) << 52);
}

// e^-x for x >= 0 in float; 0 from e^-87.69 downwards. Relative error below 1e-5 above that.
ESPALIER_HOST_DEVICE inline float exp_of_minus(float x) {
  return exp2_of_minus(x * 1.44269504F);
}

// The natural logarithm of a finite number above 0 that is not denormal. Error below 1 ulp.
// Source: fdlibm, e_log.c
ESPALIER_HOST_DEVICE inline double log_of(double x) {
  auto bits = __builtin_bit_cast(std::int64_t, x);
  // The mantissa is taken from sqrt(1/2) to sqrt(2).
  constexpr std::int64_t root_of_half = 0x3FE6A09E667F3BCD, mantissa = 0x000FFFFFFFFFFFFF;
  const std::int64_t exponent = (bits - root_of_half) >> 52;
  bits -= exponent * (mantissa + 1);
  const double f = __builtin_bit_cast(double, bits) - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s, w = z * z;
  const double even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double odd =
      z * (6.666666666666735130e-01 +
           w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  const double half_square = 0.5 * f * f;
  const auto n = static_cast<double>(exponent);
  return n * ln2_high - ((half_square - (s * (half_square + (even + odd)) + n * ln2_low)) - f);
}

// The natural logarithm in float, of a finite number above 0 that is not denormal.
// Source: fdlibm, e_logf.c
ESPALIER_HOST_DEVICE inline float log_of(float x) {
  auto bits = __builtin_bit_cast(std::int32_t, x);
  constexpr std::int32_t root_of_half = 0x3F3504F3, mantissa = 0x007FFFFF;
  const std::int32_t exponent = (bits - root_of_half) >> 23;
  bits -= exponent * (mantissa + 1);
  const float f = __builtin_bit_cast(float, bits) - 1.0F;
  const float s = f / (2.0F + f);
  const float z = s * s, w = z * z;
  const float rest = w * (0.40000972152F + w * 0.24279078841F) + z * (0.66666662693F + w * 0.28498786688F);
  const float half_square = 0.5F * f * f;
  const auto n = static_cast<float>(exponent);
  return n * 6.9313812256e-01F - ((half_square - (s * (half_square + rest) + n * 9.0580006145e-06F)) - f);
}

// If the largest logit of a block (mass_block numbers of a row) lies in this range, the block's sum is made of e^logit
// directly; otherwise it is made of e^(logit - largest logit).
inline constexpr float plain_from = -40.0F, plain_to = 60.0F;

// A sum of exponentials: sum * e^reference.
struct exp_sum {
  double reference = 0;  // finite if sum is above 0
  double sum = 0;

  // Adds another sum. a += b and b += a give the same bits.
  ESPALIER_HOST_DEVICE exp_sum& operator+=(const exp_sum& other) {
    if (!(other.sum > 0)) return *this;
    if (!(sum > 0)) return *this = other;
    if (reference >= other.reference) {
      sum += reference == other.reference ? other.sum : other.sum * exp_of_minus(reference - other.reference);
    } else {
      sum = sum * exp_of_minus(other.reference - reference) + other.sum;
      reference = other.reference;
    }
    return *this;
  }
  // The natural logarithm of the sum of exponentials, where `unit` is the number that stands for 1 in `sum`.
  //
  // Pre         sum > 0
  ESPALIER_HOST_DEVICE double log(double unit) const { return reference + log_of(sum / unit); }
};

}  // namespace espalier::detail
