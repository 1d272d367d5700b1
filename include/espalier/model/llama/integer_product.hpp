// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "espalier/model/llama/activation_rows.hpp"
#include "espalier/model/llama/instruction_set.hpp"
#include "espalier/model/llama/panel_part.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace espalier::detail {

// A product of rows of integers and a part of a panel, which is added to sums[r][32].
//
// Within each block, or each half of a block where halves have scales of their own, products of integers are summed
// exactly. Over the blocks, ascending, runs one chain of multiply-adds, each rounded once: sum = dot * (scale of
// weights * scale of activations) + sum and, where the type has offsets, sum = offset * scaled_sum + sum. So all
// instructions give the same numbers, and a row's numbers do not depend on other rows.
struct integer_product {
  const panel_part& part;
  const activation_block* x;  // [blocks][rows]
  int rows;
  float* sums;  // 64-byte aligned
};

// Makes the product on any processor.
inline void multiply_portably(const integer_product& p) {
  const panel_part& part = p.part;
  const activation_block* x = p.x;
  for (int b = 0; b < part.n_blocks; ++b) {
    if (p.rows > panel_part::few_rows) part.fetch_ahead(b);
    const auto* codes = reinterpret_cast<const std::uint8_t*>(part.codes[b]);
    for (int row = 0; row < p.rows; ++row, ++x) {
      float* sums = p.sums + panel_layout::outputs * row;
      for (int lane = 0; lane < panel_layout::outputs; ++lane) {
        std::int32_t dot = 0;
        for (int i = 0; i < panel_layout::block; ++i) {
          const int v = i / 4, at = 4 * lane + i % 4;
          const int code =
              !part.nibbles ? codes[128 * v + at] : (v < 4 ? codes[128 * v + at] & 15 : codes[128 * (v - 4) + at] >> 4);
          dot += (code - part.zero) * x->q[i];
          if (i == 31 || (i == 15 && part.halves == 2)) {
            sums[lane] = std::fma(static_cast<float>(dot), part.scales(b, i / 16)[lane] * x->scale, sums[lane]);
            dot = 0;
          }
        }
        if (part.has_offset) sums[lane] = std::fma(part.offsets(b)[lane], x->scaled_sum, sums[lane]);
      }
    }
  }
}

#if defined(__x86_64__)

// Ways in which the kernel of 256 bits sums the products of two vectors of codes with activations. Codes are used
// without a sign, or as the integers that they mean.

// AVX2 and codes of up to 6 bits: the sum of four products fits 16 bits.
struct avx2_dots {
  static constexpr bool signed_codes = false;
  [[gnu::target("avx2,fma")]] static __m256i add(__m256i dots, __m256i q0, __m256i q1, __m256i x0, __m256i x1) {
    const __m256i fours = _mm256_add_epi16(_mm256_maddubs_epi16(q0, x0), _mm256_maddubs_epi16(q1, x1));
    return _mm256_add_epi32(dots, _mm256_madd_epi16(fours, _mm256_set1_epi16(1)));
  }
};

// AVX2 and codes of 8 bits: the activation takes the weight's sign, so that the sum of two products fits 16 bits.
struct avx2_byte_dots {
  static constexpr bool signed_codes = true;
  [[gnu::target("avx2,fma")]] static __m256i add(__m256i dots, __m256i q0, __m256i q1, __m256i x0, __m256i x1) {
    return add(add(dots, q0, x0), q1, x1);
  }
  [[gnu::target("avx2,fma")]] static __m256i add(__m256i dots, __m256i q, __m256i x) {
    const __m256i twos = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q));
    return _mm256_add_epi32(dots, _mm256_madd_epi16(twos, _mm256_set1_epi16(1)));
  }
};

// One instruction sums four products in 32 bits, in the encoding of AVX-VNNI or of AVX-512.
struct avx_vnni_dots {
  static constexpr bool signed_codes = false;
  [[gnu::target("avx2,fma,avxvnni")]] static __m256i add(__m256i dots, __m256i q0, __m256i q1, __m256i x0, __m256i x1) {
    return _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(dots, q0, x0), q1, x1);
  }
};
struct avx512_vnni_dots {
  static constexpr bool signed_codes = false;
  [[gnu::target("avx2,fma,avx512vl,avx512vnni")]] static __m256i add(__m256i dots, __m256i q0, __m256i q1, __m256i x0,
                                                                     __m256i x1) {
    return _mm256_dpbusd_epi32(_mm256_dpbusd_epi32(dots, q0, x0), q1, x1);
  }
};

// The kernel of 256 bits. It becomes part of functions for processors that have DotsT's instructions.
template <class DotsT>
[[gnu::always_inline, gnu::target("avx2,fma")]] inline void multiply_256(const integer_product& p) {
  const panel_part& part = p.part;
  const __m256i low = _mm256_set1_epi8(15), zero = _mm256_set1_epi8(static_cast<char>(part.zero));
  const std::int32_t zeros = DotsT::signed_codes ? 0 : -part.zero;  // takes back the zero that every code has in excess
  for (int b = 0; b < part.n_blocks; ++b) {
    if (p.rows > panel_part::few_rows) part.fetch_ahead(b);
    for (int lane = 0; lane < panel_layout::outputs; lane += 8) {
      const auto* from = reinterpret_cast<const __m256i*>(part.codes[b] + 4 * lane);
      __m256i q[8];
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v, from += 4) {
        const __m256i first = _mm256_loadu_si256(from);
        q[v] = part.nibbles ? _mm256_and_si256(first, low) : first;
        q[v + 4] = part.nibbles ? _mm256_and_si256(_mm256_srli_epi16(first, 4), low) : _mm256_loadu_si256(from + 16);
        if (!DotsT::signed_codes) continue;
        q[v] = _mm256_sub_epi8(q[v], zero);
        q[v + 4] = _mm256_sub_epi8(q[v + 4], zero);
      }
      const __m256 scale[2] = {_mm256_loadu_ps(part.scales(b, 0) + lane), _mm256_loadu_ps(part.scales(b, 1) + lane)};
      const __m256 offset = _mm256_loadu_ps(part.offsets(b) + lane);
      const activation_block* x = p.x + static_cast<std::ptrdiff_t>(b) * p.rows;
      float* sums = p.sums + lane;
      for (int row = 0; row < p.rows; ++row, ++x, sums += panel_layout::outputs) {
        __m256 sum = _mm256_loadu_ps(sums);
        const __m256 factor = _mm256_set1_ps(x->scale);
        __m256i dot = _mm256_set1_epi32(zeros * (part.halves == 1 ? x->sum[0] + x->sum[1] : x->sum[0]));
#pragma GCC unroll 4
        for (int v = 0; v < 8; v += 2) {
          std::int32_t first, second;
          std::memcpy(&first, x->q + 4 * v, 4);
          std::memcpy(&second, x->q + 4 * v + 4, 4);
          dot = DotsT::add(dot, q[v], q[v + 1], _mm256_set1_epi32(first), _mm256_set1_epi32(second));
          if (v == 6 || (v == 2 && part.halves == 2)) {
            sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(scale[v / 4], factor), sum);
            dot = _mm256_set1_epi32(zeros * x->sum[1]);
          }
        }
        if (part.has_offset) sum = _mm256_fmadd_ps(offset, _mm256_set1_ps(x->scaled_sum), sum);
        _mm256_storeu_ps(sums, sum);
      }
    }
  }
}

[[gnu::target("avx2,fma")]] inline void multiply_avx2(const integer_product& p) {
  if (p.part.zero == panel_layout::zero_of_bytes) return multiply_256<avx2_byte_dots>(p);
  multiply_256<avx2_dots>(p);
}
[[gnu::target("avx2,fma,avxvnni")]] inline void multiply_avx_vnni(const integer_product& p) {
  multiply_256<avx_vnni_dots>(p);
}
[[gnu::target("avx2,fma,avx512vl,avx512vnni")]] inline void multiply_avx512_vnni_256(const integer_product& p) {
  multiply_256<avx512_vnni_dots>(p);
}

// The kernel of AVX-512 (F, BW, VL) and its VNNI. GCC 12 warns about intrinsics that leave lanes unset; the kernel uses
// the forms that set them to zero, with a mask of all lanes.
[[gnu::target("avx512f,avx512bw,avx512vl,avx512vnni")]] inline void multiply_avx512(const integer_product& p) {
  constexpr __mmask16 all = 0xFFFF;
  const panel_part& part = p.part;
  const __m512i low = _mm512_set1_epi8(15);
  const activation_block* x = p.x;
  for (int b = 0; b < part.n_blocks; ++b) {
    if (p.rows > panel_part::few_rows) part.fetch_ahead(b);
    const std::byte* codes = part.codes[b];
    __m512i c[8][2];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
#pragma GCC unroll 2
      for (int side = 0; side < 2; ++side) {
        const std::byte* from = codes + 128 * v + 64 * side;
        c[v][side] = _mm512_loadu_si512(from);
        if (part.nibbles) {
          c[v + 4][side] = _mm512_and_si512(_mm512_srli_epi16(c[v][side], 4), low);
          c[v][side] = _mm512_and_si512(c[v][side], low);
        } else {
          c[v + 4][side] = _mm512_loadu_si512(from + 512);
        }
      }
    }
    __m512 scale[2][2], offset[2];
#pragma GCC unroll 2
    for (int side = 0; side < 2; ++side) {
      scale[0][side] = _mm512_load_ps(part.scales(b, 0) + 16 * side);
      scale[1][side] = _mm512_load_ps(part.scales(b, 1) + 16 * side);
      offset[side] = _mm512_load_ps(part.offsets(b) + 16 * side);
    }
    float* sums = p.sums;
    for (int row = 0; row < p.rows; ++row, ++x, sums += panel_layout::outputs) {
      const __m512 factor = _mm512_set1_ps(x->scale);
      __m512 sum[2] = {_mm512_load_ps(sums), _mm512_load_ps(sums + 16)};
      __m512i dot[2];
      dot[0] = dot[1] = _mm512_set1_epi32(-part.zero * (x->sum[0] + (part.halves == 1 ? x->sum[1] : 0)));
#pragma GCC unroll 8
      for (int v = 0; v < 8; ++v) {
        std::int32_t four;
        std::memcpy(&four, x->q + 4 * v, 4);
        const __m512i value = _mm512_set1_epi32(four);
        dot[0] = _mm512_dpbusd_epi32(dot[0], c[v][0], value);
        dot[1] = _mm512_dpbusd_epi32(dot[1], c[v][1], value);
        if (v == 7 || (v == 3 && part.halves == 2)) {
          sum[0] =
              _mm512_fmadd_ps(_mm512_maskz_cvtepi32_ps(all, dot[0]), _mm512_mul_ps(scale[v / 4][0], factor), sum[0]);
          sum[1] =
              _mm512_fmadd_ps(_mm512_maskz_cvtepi32_ps(all, dot[1]), _mm512_mul_ps(scale[v / 4][1], factor), sum[1]);
          dot[0] = dot[1] = _mm512_set1_epi32(-part.zero * x->sum[1]);
        }
      }
      if (part.has_offset) {
        const __m512 whole = _mm512_set1_ps(x->scaled_sum);
        sum[0] = _mm512_fmadd_ps(offset[0], whole, sum[0]);
        sum[1] = _mm512_fmadd_ps(offset[1], whole, sum[1]);
      }
      _mm512_store_ps(sums, sum[0]);
      _mm512_store_ps(sums + 16, sum[1]);
    }
  }
}

#endif

#if ESPALIER_NEON_DOT_PRODUCTS

// Adds the products of four vectors of weights and a half of the activations to dots[8].
#if !defined(__ARM_FEATURE_DOTPROD)
[[gnu::target("arch=armv8.2-a+dotprod")]]
#endif
inline void
add_neon_dots(int32x4_t (&dots)[2], const int8x16_t (*q)[2], int8x16_t x) {
  for (int side = 0; side < 2; ++side) {
    dots[side] = vdotq_laneq_s32(dots[side], q[0][side], x, 0);
    dots[side] = vdotq_laneq_s32(dots[side], q[1][side], x, 1);
    dots[side] = vdotq_laneq_s32(dots[side], q[2][side], x, 2);
    dots[side] = vdotq_laneq_s32(dots[side], q[3][side], x, 3);
  }
}

// The kernel of NEON with products of four bytes: 8 outputs at a time, whose weights stay in registers for all rows.
#if !defined(__ARM_FEATURE_DOTPROD)
[[gnu::target("arch=armv8.2-a+dotprod")]]
#endif
inline void
multiply_neon(const integer_product& p) {
  const panel_part& part = p.part;
  const uint8x16_t low = vdupq_n_u8(15), zero = vdupq_n_u8(static_cast<std::uint8_t>(part.zero));
  for (int b = 0; b < part.n_blocks; ++b) {
    if (p.rows > panel_part::few_rows) part.fetch_ahead(b);
    for (int lane = 0; lane < panel_layout::outputs; lane += 8) {
      const auto* from = reinterpret_cast<const std::uint8_t*>(part.codes[b] + 4 * lane);
      int8x16_t q[8][2];
      float32x4_t scale[2][2], offset[2];
#pragma GCC unroll 2
      for (int side = 0; side < 2; ++side) {
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) {
          const std::uint8_t* at = from + 128 * v + 16 * side;
          const uint8x16_t first = vld1q_u8(at);
          const uint8x16_t second = part.nibbles ? vshrq_n_u8(first, 4) : vld1q_u8(at + 512);
          q[v][side] = vreinterpretq_s8_u8(vsubq_u8(part.nibbles ? vandq_u8(first, low) : first, zero));
          q[v + 4][side] = vreinterpretq_s8_u8(vsubq_u8(second, zero));
        }
        scale[0][side] = vld1q_f32(part.scales(b, 0) + lane + 4 * side);
        scale[1][side] = vld1q_f32(part.scales(b, 1) + lane + 4 * side);
        offset[side] = vld1q_f32(part.offsets(b) + lane + 4 * side);
      }
      const activation_block* x = p.x + static_cast<std::ptrdiff_t>(b) * p.rows;
      float* sums = p.sums + lane;
      for (int row = 0; row < p.rows; ++row, ++x, sums += panel_layout::outputs) {
        float32x4_t sum[2] = {vld1q_f32(sums), vld1q_f32(sums + 4)};
        int32x4_t dots[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          add_neon_dots(dots, q + 4 * half, vld1q_s8(x->q + 16 * half));
          if (half == 0 && part.halves == 1) continue;
#pragma GCC unroll 2
          for (int side = 0; side < 2; ++side) {
            sum[side] = vfmaq_f32(sum[side], vcvtq_f32_s32(dots[side]), vmulq_n_f32(scale[half][side], x->scale));
            dots[side] = vdupq_n_s32(0);
          }
        }
        if (part.has_offset) {
          const float32x4_t whole = vdupq_n_f32(x->scaled_sum);
          sum[0] = vfmaq_f32(sum[0], offset[0], whole);
          sum[1] = vfmaq_f32(sum[1], offset[1], whole);
        }
        vst1q_f32(sums, sum[0]);
        vst1q_f32(sums + 4, sum[1]);
      }
    }
  }
}

#endif

}  // namespace espalier::detail
