// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "espalier/model/llama/activation_rows.hpp"
#include "espalier/model/llama/instruction_set.hpp"
#include "espalier/model/llama/panel_layout.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace espalier::detail {

// A product of the integers of some rows and a panel of bytes: for each row and output, the exact sum of
// x[row][i] * weight[output][i] over all inputs i. Sums of integers are the same in any order, so all instructions give
// the same numbers.
//
// The function finish(row, sums) of the caller receives the sums of each row once, as const double[32]. It should be
// [[gnu::always_inline]], so that it is compiled with the kernel's instructions.
//
// Bytes of the panel are read to the end of the last activation_block, up to 1 KiB behind the last weight: whatever
// lies there is multiplied by 0.
struct integer_product {
  static constexpr int max_inputs = 1 << 16;  // the sum of products with either byte of an activation fits 32 bits

  const std::byte* weights;   // [blocks][activation_block::size / 4][32][4]
  const activation_block* x;  // [blocks][rows], of bytes or of words: takes_bytes() of an integer_multiplier
  int blocks;
  int rows;
  double* sums;                         // working memory, [rows][32], 64-byte aligned
  const std::byte* upcoming = nullptr;  // panel that is multiplied next, or null: it is fetched meanwhile
};

// Calls finish(row, sums) for all rows of a product, whose sums are complete in p.sums.
template <class FinishT>
[[gnu::always_inline]] inline void finish_rows(const integer_product& p, const FinishT& finish) {
  for (int row = 0; row < p.rows; ++row)
    finish(row, p.sums + static_cast<std::ptrdiff_t>(panel_layout::outputs) * row);
}

// Fetches, into the cache, a vector of a panel 8 KiB beyond `weights`: the hardware's own prefetch does not reach
// far enough. Without always_inline GCC drops the call as one without effect.
[[gnu::always_inline]] inline void fetch_weights(const std::byte* weights) {
  constexpr std::size_t distance = 1 << 13;
  __builtin_prefetch(weights + distance, 0, 2);
  __builtin_prefetch(weights + distance + panel_layout::vector_bytes / 2, 0, 2);
}

// A fetcher of the panel that is multiplied next, into the second cache, while a kernel reads its own panel several
// times: a part each time, so that memory is read all the while.
class panel_fetcher {
 public:
  // Takes how many times the kernel reads its panel, and how many cache lines it fetches besides by fetch(lines).
  panel_fetcher(const integer_product& p, int readings, int besides = 0)
      : next_(p.upcoming),
        end_(p.upcoming ? p.upcoming + p.blocks * block_bytes : nullptr),
        lines_((block_lines * p.blocks - besides + readings * p.blocks - 1) / (readings * p.blocks)) {}

  // Fetches the part of a block that the kernel reads.
  [[gnu::always_inline]] void fetch() { fetch(lines_); }

  [[gnu::always_inline]] void fetch(int lines) {
    for (int line = 0; line < lines && next_ != end_; ++line, next_ += 64)
      __builtin_prefetch(next_, 0, 2);
  }

 private:
  static constexpr int block_bytes = panel_layout::outputs * activation_block::size, block_lines = block_bytes / 64;

  const std::byte *next_, *end_;
  int lines_;
};

// Makes the product on any processor, from words.
template <class FinishT>
void multiply_portably(const integer_product& p, const FinishT& finish) {
  constexpr int outputs = panel_layout::outputs;
  for (int row = 0; row < p.rows; ++row) {
    std::int64_t sums[outputs] = {};
    const auto* weights = reinterpret_cast<const std::int8_t*>(p.weights);
    for (int b = 0; b < p.blocks; ++b) {
      const std::int16_t* x = p.x[static_cast<std::ptrdiff_t>(b) * p.rows + row].words;
      for (int i = 0; i < activation_block::size; i += 4, weights += panel_layout::vector_bytes) {
        for (int o = 0; o < outputs; ++o) {
          for (int k = 0; k < 4; ++k)
            sums[o] += x[i + k] * weights[4 * o + k];
        }
      }
    }
    for (int o = 0; o < outputs; ++o)
      p.sums[static_cast<std::ptrdiff_t>(outputs) * row + o] = static_cast<double>(sums[o]);
  }
  finish_rows(p, finish);
}

#if defined(__x86_64__)

// Number of blocks whose products with words are summed in 32 bits: a lane sums 32 products of each block.
constexpr int blocks_of_words = 16;
static_assert(128.0 * activation_rows::greatest * 32.0 * blocks_of_words < 2147483648.0);

// Adds pairs of neighbouring sums of 32 bits to the sums of four outputs; with `first`, writes them.
[[gnu::always_inline, gnu::target("avx2,fma")]] inline void add_pairs(__m256i pairs, bool first, double* to) {
  const __m256d low = _mm256_cvtepi32_pd(_mm256_castsi256_si128(pairs)),
                high = _mm256_cvtepi32_pd(_mm256_extracti128_si256(pairs, 1));
  const __m256d sums = _mm256_permute4x64_pd(_mm256_hadd_pd(low, high), 0b11011000);
  _mm256_store_pd(to, first ? sums : _mm256_add_pd(_mm256_load_pd(to), sums));
}

// Instructions that add products of numbers of 16 bits to sums of 32 bits, two products to each sum.
struct avx2_words {
  [[gnu::target("avx2,fma")]] static __m256i add(__m256i sums, __m256i weights, __m256i x) {
    // With an intrinsic for the addition, GCC makes all products first, for which there are not enough registers.
    asm("{vpaddd %1, %0, %0|vpaddd %0, %0, %1}" : "+x"(sums) : "x"(_mm256_madd_epi16(weights, x)));
    return sums;
  }
};
struct avx_vnni_words {
  [[gnu::target("avx2,fma,avxvnni")]] static __m256i add(__m256i sums, __m256i weights, __m256i x) {
    return _mm256_dpwssd_avx_epi32(sums, weights, x);
  }
};
struct avx512_vnni_words {
  [[gnu::target("avx2,fma,avx512vl,avx512vnni")]] static __m256i add(__m256i sums, __m256i weights, __m256i x) {
    return _mm256_dpwssd_epi32(sums, weights, x);
  }
};

[[gnu::always_inline, gnu::target("avx2,fma")]] inline __m256i widened(const std::byte* weights) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights)));
}

// Multiplies RowsT rows from `row` on by 4 VectorsT outputs from `output` on. A vector of weights has four inputs of
// four outputs, widened to 16 bits. It is multiplied by a vector that has the row's four inputs four times.
template <class WordsT, int VectorsT, int RowsT>
[[gnu::always_inline, gnu::target("avx2,fma")]] inline void multiply_rows_256(const integer_product& p, int output,
                                                                              int row, panel_fetcher& behind) {
  const std::byte* weights = p.weights + 4 * output;
  const activation_block* x = p.x + row;
  const bool alone = p.rows == 1;
  for (int first = 0; first < p.blocks; first += blocks_of_words) {
    __m256i sums[RowsT][VectorsT];
#pragma GCC unroll 8
    for (int r = 0; r < RowsT; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < VectorsT; ++v)
        sums[r][v] = _mm256_setzero_si256();
    }
    const int end = (std::min)(first + blocks_of_words, p.blocks);
    for (int b = first; b < end; ++b, x += p.rows) {
      if (!alone) behind.fetch();
#pragma GCC unroll 4
      for (int i = 0; i < activation_block::size; i += 4, weights += panel_layout::vector_bytes) {
        if (alone) fetch_weights(weights);
        __m256i w[VectorsT];
#pragma GCC unroll 8
        for (int v = 0; v < VectorsT && RowsT > 1; ++v)
          w[v] = widened(weights + 16 * v);
#pragma GCC unroll 8
        for (int r = 0; r < RowsT; ++r) {
          std::int64_t words;
          std::memcpy(&words, x[r].words + i, sizeof words);
          const __m256i four = _mm256_set1_epi64x(words);
#pragma GCC unroll 8
          for (int v = 0; v < VectorsT; ++v)
            sums[r][v] = WordsT::add(sums[r][v], RowsT > 1 ? w[v] : widened(weights + 16 * v), four);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < RowsT; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < VectorsT; ++v)
        add_pairs(sums[r][v], first == 0,
                  p.sums + static_cast<std::ptrdiff_t>(panel_layout::outputs) * (row + r) + output + 4 * v);
    }
  }
}

// The kernel of 256 bits. It becomes part of functions for processors that have WordsT's instructions.
template <class WordsT>
[[gnu::always_inline, gnu::target("avx2,fma")]] inline void multiply_256(const integer_product& p) {
  panel_fetcher behind(p, 2 * ((p.rows + 1) / 2));
  if (p.rows == 1) return multiply_rows_256<WordsT, 8, 1>(p, 0, 0, behind);
  for (int output = 0; output < panel_layout::outputs; output += 16) {
    int row = 0;
    for (; row + 2 <= p.rows; row += 2)
      multiply_rows_256<WordsT, 4, 2>(p, output, row, behind);
    if (row < p.rows) multiply_rows_256<WordsT, 4, 1>(p, output, row, behind);
  }
}

template <class FinishT>
[[gnu::target("avx2,fma")]] void multiply_avx2(const integer_product& p, const FinishT& finish) {
  multiply_256<avx2_words>(p);
  finish_rows(p, finish);
}
template <class FinishT>
[[gnu::target("avx2,fma,avxvnni")]] void multiply_avx_vnni(const integer_product& p, const FinishT& finish) {
  multiply_256<avx_vnni_words>(p);
  finish_rows(p, finish);
}
template <class FinishT>
[[gnu::target("avx2,fma,avx512vl,avx512vnni")]] void multiply_avx512_vnni_256(const integer_product& p,
                                                                              const FinishT& finish) {
  multiply_256<avx512_vnni_words>(p);
  finish_rows(p, finish);
}

// Most rows whose sums fit into the registers of AVX-512 beside weights and activations.
constexpr int most_rows_512 = 6;

// Multiplies RowsT rows from `row` on, as multiply_rows_256, with vectors of eight outputs.
template <int RowsT>
[[gnu::target("avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]] inline void multiply_rows_512(const integer_product& p,
                                                                                               int row,
                                                                                               panel_fetcher& behind) {
  constexpr int vectors = panel_layout::outputs / 8;
  const bool once = p.rows <= most_rows_512;
  const std::byte* weights = p.weights;
  const activation_block* x = p.x + row;
  for (int first = 0; first < p.blocks; first += blocks_of_words) {
    __m512i sums[RowsT][vectors];
#pragma GCC unroll 8
    for (int r = 0; r < RowsT; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v)
        sums[r][v] = _mm512_setzero_si512();
    }
    const int end = (std::min)(first + blocks_of_words, p.blocks);
    for (int b = first; b < end; ++b, x += p.rows) {
      if (!once) behind.fetch();
      for (int i = 0; i < activation_block::size; i += 4, weights += panel_layout::vector_bytes) {
        if (once) fetch_weights(weights);
        __m512i w[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
          // GCC 12 warns about intrinsics that leave lanes unset; this form has a mask of all lanes.
          w[v] = _mm512_maskz_cvtepi8_epi16(0xFFFFFFFFU,
                                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + 32 * v)));
        }
#pragma GCC unroll 8
        for (int r = 0; r < RowsT; ++r) {
          std::int64_t words;
          std::memcpy(&words, x[r].words + i, sizeof words);
          const __m512i four = _mm512_set1_epi64(words);
#pragma GCC unroll 4
          for (int v = 0; v < vectors; ++v)
            sums[r][v] = _mm512_dpwssd_epi32(sums[r][v], w[v], four);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < RowsT; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        double* to = p.sums + static_cast<std::ptrdiff_t>(panel_layout::outputs) * (row + r) + 8 * v;
        add_pairs(_mm512_maskz_extracti64x4_epi64(0xFF, sums[r][v], 0), first == 0, to);
        add_pairs(_mm512_maskz_extracti64x4_epi64(0xFF, sums[r][v], 1), first == 0, to + 4);
      }
    }
  }
}

// The kernel of AVX-512 (F, BW, VL) and its VNNI.
template <class FinishT>
[[gnu::target("avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]] void multiply_avx512(const integer_product& p,
                                                                                      const FinishT& finish) {
  int runs = (p.rows + most_rows_512 - 1) / most_rows_512;
  panel_fetcher behind(p, runs);
  for (int row = 0; runs > 0; --runs) {
    const int rows = (p.rows - row) / runs;
    if (rows == 1) multiply_rows_512<1>(p, row, behind);
    if (rows == 2) multiply_rows_512<2>(p, row, behind);
    if (rows == 3) multiply_rows_512<3>(p, row, behind);
    if (rows == 4) multiply_rows_512<4>(p, row, behind);
    if (rows == 5) multiply_rows_512<5>(p, row, behind);
    if (rows == 6) multiply_rows_512<6>(p, row, behind);
    row += rows;
  }
  finish_rows(p, finish);
}

#endif

#if ESPALIER_NEON_DOT_PRODUCTS

// The kernels of NEON multiply the two bytes of activations separately, for eight outputs and 16 inputs at a time. The
// weights of these stay in registers for up to four rows.

// The kernel with products of four bytes.
template <int RowsT>
#if !defined(__ARM_FEATURE_DOTPROD)
[[gnu::target("arch=armv8.2-a+dotprod")]]
#endif
inline void
multiply_rows_neon(const integer_product& p, int output, int row) {
  int32x4_t sums[RowsT][2][2];  // [rows][byte of the activations][half of the outputs]
  for (int r = 0; r < RowsT; ++r)
    sums[r][0][0] = sums[r][0][1] = sums[r][1][0] = sums[r][1][1] = vdupq_n_s32(0);
  const std::byte* weights = p.weights + 4 * output;
  const activation_block* x = p.x + row;
  for (int b = 0; b < p.blocks; ++b, x += p.rows) {
    for (int i = 0; i < activation_block::size; i += 16) {
      int8x16_t q[4][2];
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v, weights += panel_layout::vector_bytes) {
        if (output == 0 && row == 0) fetch_weights(weights);
        const auto* from = reinterpret_cast<const std::int8_t*>(weights);
        q[v][0] = vld1q_s8(from);
        q[v][1] = vld1q_s8(from + 16);
      }
#pragma GCC unroll 4
      for (int r = 0; r < RowsT; ++r) {
#pragma GCC unroll 2
        for (int byte = 0; byte < 2; ++byte) {
          const int8x16_t of_row = vld1q_s8(x[r].bytes[byte] + i);
#pragma GCC unroll 2
          for (int side = 0; side < 2; ++side) {
            int32x4_t& sum = sums[r][byte][side];
            sum = vdotq_laneq_s32(sum, q[0][side], of_row, 0);
            sum = vdotq_laneq_s32(sum, q[1][side], of_row, 1);
            sum = vdotq_laneq_s32(sum, q[2][side], of_row, 2);
            sum = vdotq_laneq_s32(sum, q[3][side], of_row, 3);
          }
        }
      }
    }
  }
  for (int r = 0; r < RowsT; ++r) {
    std::int32_t of_bytes[2][8];
    for (int byte = 0; byte < 2; ++byte) {
      vst1q_s32(of_bytes[byte], sums[r][byte][0]);
      vst1q_s32(of_bytes[byte] + 4, sums[r][byte][1]);
    }
    double* to = p.sums + static_cast<std::ptrdiff_t>(panel_layout::outputs) * (row + r) + output;
    for (int o = 0; o < 8; ++o)
      to[o] = 256.0 * of_bytes[0][o] + of_bytes[1][o];
  }
}

template <class FinishT>
void multiply_neon(const integer_product& p, const FinishT& finish) {
  for (int output = 0; output < panel_layout::outputs; output += 8) {
    for (int row = 0; row < p.rows;) {
      const int rows = (std::min)(4, p.rows - row);
      if (rows == 1) multiply_rows_neon<1>(p, output, row);
      if (rows == 2) multiply_rows_neon<2>(p, output, row);
      if (rows == 3) multiply_rows_neon<3>(p, output, row);
      if (rows == 4) multiply_rows_neon<4>(p, output, row);
      row += rows;
    }
  }
  finish_rows(p, finish);
}

#endif

#if ESPALIER_NEON_MATRIX_PRODUCTS

// The kernel with dot products of two vectors of eight bytes with two others: two outputs with the two bytes of a row.
template <int RowsT>
#if !defined(__ARM_FEATURE_MATMUL_INT8)
[[gnu::target("arch=armv8.2-a+i8mm")]]
#endif
inline void
multiply_rows_i8mm(const integer_product& p, int output, int row) {
  int32x4_t sums[RowsT][4];  // [rows][pair of outputs]: each output with the first byte, then with the second
  for (int r = 0; r < RowsT; ++r)
    sums[r][0] = sums[r][1] = sums[r][2] = sums[r][3] = vdupq_n_s32(0);
  const std::byte* weights = p.weights + 4 * output;
  const activation_block* x = p.x + row;
  for (int b = 0; b < p.blocks; ++b, x += p.rows) {
    for (int i = 0; i < activation_block::size; i += 16) {
      int8x16_t q[2][4];  // [half of the inputs][pair of outputs]: eight inputs of two outputs
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half, weights += 2 * panel_layout::vector_bytes) {
        if (output == 0 && row == 0) fetch_weights(weights), fetch_weights(weights + panel_layout::vector_bytes);
#pragma GCC unroll 2
        for (int side = 0; side < 2; ++side) {
          const auto* from = reinterpret_cast<const std::int32_t*>(weights + 16 * side);
          const int32x4_t low = vld1q_s32(from), high = vld1q_s32(from + panel_layout::vector_bytes / 4);
          q[half][2 * side] = vreinterpretq_s8_s32(vzip1q_s32(low, high));
          q[half][2 * side + 1] = vreinterpretq_s8_s32(vzip2q_s32(low, high));
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < RowsT; ++r) {
        const int64x2_t first = vreinterpretq_s64_s8(vld1q_s8(x[r].bytes[0] + i)),
                        second = vreinterpretq_s64_s8(vld1q_s8(x[r].bytes[1] + i));
        const int8x16_t of_row[2] = {vreinterpretq_s8_s64(vzip1q_s64(first, second)),
                                     vreinterpretq_s8_s64(vzip2q_s64(first, second))};
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 4
          for (int pair = 0; pair < 4; ++pair)
            sums[r][pair] = vmmlaq_s32(sums[r][pair], q[half][pair], of_row[half]);
        }
      }
    }
  }
  for (int r = 0; r < RowsT; ++r) {
    double* to = p.sums + static_cast<std::ptrdiff_t>(panel_layout::outputs) * (row + r) + output;
    for (int pair = 0; pair < 4; ++pair) {
      std::int32_t of_bytes[4];
      vst1q_s32(of_bytes, sums[r][pair]);
      to[2 * pair] = 256.0 * of_bytes[0] + of_bytes[1];
      to[2 * pair + 1] = 256.0 * of_bytes[2] + of_bytes[3];
    }
  }
}

template <class FinishT>
void multiply_i8mm(const integer_product& p, const FinishT& finish) {
  for (int output = 0; output < panel_layout::outputs; output += 8) {
    for (int row = 0; row < p.rows;) {
      const int rows = (std::min)(4, p.rows - row);
      if (rows == 1) multiply_rows_i8mm<1>(p, output, row);
      if (rows == 2) multiply_rows_i8mm<2>(p, output, row);
      if (rows == 3) multiply_rows_i8mm<3>(p, output, row);
      if (rows == 4) multiply_rows_i8mm<4>(p, output, row);
      row += rows;
    }
  }
  finish_rows(p, finish);
}

#endif

}  // namespace espalier::detail
