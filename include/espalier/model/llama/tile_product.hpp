// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "espalier/model/llama/activation_rows.hpp"
#include "espalier/model/llama/integer_product.hpp"
#include "espalier/model/llama/panel_layout.hpp"

namespace espalier::detail {

// The shapes of the tiles of a processor with AMX, as its instruction reads them. A tile of no rows is not used.
struct alignas(64) tile_shapes {
  static constexpr int max_rows = 16, max_row_bytes = 64;

  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(tile_shapes) == 64);

// The product of integer_product in tiles of 16 rows and 16 outputs. It gives the same numbers as every other kernel.
//
// A product of tiles takes two tiles. A row of one of them is a panel's vector of four inputs, for 16 outputs; a row of
// the other is a row's block of activations. So both are loaded from where they lie; only codes of 4 bits become bytes
// first. Tiles multiply codes, which are not negative; the product of the activations with the codes' zero is then
// subtracted from each sum, exactly.
//
// TilesT, tiles with numbers from 0 to 7:
//
//   configure(shapes), release()          all tiles become zero; release frees them for others
//   load<T>(from, stride)                 each row of tile T, from memory
//   clear<T>()                            all zeros
//   multiply<SumT, SignedT, UnsignedT>()  Sum[m][n] += over k of Signed[m][k] Unsigned[k / 4][4 n + k % 4]
//   store<T>(to, stride)                  as load
template <class TilesT>
class tile_product {
 public:
  tile_product() = default;
  explicit tile_product(const TilesT& tiles) : tiles_(tiles) {}
  tile_product(const tile_product&) = delete;
  tile_product& operator=(const tile_product&) = delete;

  // Pre         release() follows before the object ends
  [[gnu::always_inline]] void multiply(const integer_product& p) {
    const panel_part& part = p.part;
    configure(p.rows, part.halves);
    alignas(64) std::byte bytes[panel_layout::block * panel_layout::outputs];
    for (int b = 0; b < part.n_blocks; ++b) {
      part.fetch_ahead(b);
      const std::byte* codes = part.codes[b];
      if (part.nibbles) {
        unpack(codes, bytes);
        codes = bytes;
      }
      for (int half = 0; half < part.halves; ++half) {
        constexpr auto stride = static_cast<std::ptrdiff_t>(panel_layout::vector_bytes);
        tiles_.template load<weights>(codes + 4 * stride * half, stride);
        tiles_.template load<weights + 1>(codes + 4 * stride * half + tile_shapes::max_row_bytes, stride);
        const activation_block* x = p.x + static_cast<std::ptrdiff_t>(b) * p.rows;
        int row = 0;
        for (; row + tile_shapes::max_rows <= p.rows; row += tile_shapes::max_rows)
          add_products<0>(p, b, half, x, row, tile_shapes::max_rows);
        if (row < p.rows) add_products<1>(p, b, half, x, row, p.rows - row);
      }
    }
  }

  [[gnu::always_inline]] void release() {
    if (halves_ != 0) tiles_.release();
    halves_ = 0;
  }

 private:
  // Numbers of the tiles: weights of 16 outputs each, then activations and sums of 16 rows and of the rest of the rows.
  static constexpr int weights = 0, activations = 2, sums = 4;

  [[gnu::always_inline]] void configure(int rows, int halves) {
    if (rows == rows_ && halves == halves_) return;
    rows_ = rows;
    halves_ = halves;
    tile_shapes shapes;
    const auto set = [&](int tile, int tile_rows, int row_bytes) {
      shapes.rows[tile] = static_cast<std::uint8_t>(tile_rows);
      shapes.row_bytes[tile] = static_cast<std::uint16_t>(tile_rows > 0 ? row_bytes : 0);
    };
    const int inputs = panel_layout::block / halves;
    for (int i = 0; i < 2; ++i) {
      set(weights + i, inputs / 4, tile_shapes::max_row_bytes);
      const int of_rows = i == 1                         ? rows % tile_shapes::max_rows
                          : rows < tile_shapes::max_rows ? 0
                                                         : tile_shapes::max_rows;
      set(activations + i, of_rows, inputs);
      set(sums + 2 * i, of_rows, tile_shapes::max_row_bytes);
      set(sums + 2 * i + 1, of_rows, tile_shapes::max_row_bytes);
    }
    tiles_.configure(shapes);
  }

  [[gnu::always_inline]] static void unpack(const std::byte* __restrict codes, std::byte* __restrict to) {
    constexpr std::size_t half = panel_layout::block * panel_layout::outputs / 2;
    for (std::size_t i = 0; i < half; ++i) {
      to[i] = codes[i] & std::byte{15};
      to[half + i] = codes[i] >> 4;
    }
  }

  // Adds the products of `rows` rows from `first` on, with the tiles that are configured for as many rows.
  template <int RestT>
  [[gnu::always_inline]] void add_products(const integer_product& p, int b, int half, const activation_block* x,
                                           int first, int rows) {
    constexpr int a = activations + RestT, low = sums + 2 * RestT, high = low + 1, outputs = panel_layout::outputs;
    alignas(64) std::int32_t dots[tile_shapes::max_rows][outputs];
    const panel_part& part = p.part;
    tiles_.template load<a>(x[first].q + 16 * half, sizeof(activation_block));
    tiles_.template clear<low>();
    tiles_.template clear<high>();
    tiles_.template multiply<low, a, weights>();
    tiles_.template multiply<high, a, weights + 1>();
    tiles_.template store<low>(dots[0], sizeof dots[0]);
    tiles_.template store<high>(dots[0] + outputs / 2, sizeof dots[0]);
    for (int row = 0; row < rows; ++row) {
      const activation_block& of = x[first + row];
      float* to = p.sums + outputs * (first + row);
      add_scaled(to, dots[row], part.zero * (part.halves == 1 ? of.sum[0] + of.sum[1] : of.sum[half]),
                 part.scales(b, half), of.scale);
      if (part.has_offset && half + 1 == part.halves) add_offsets(to, part.offsets(b), of.scaled_sum);
    }
  }

  [[gnu::always_inline]] static void add_scaled(float* __restrict to, const std::int32_t* __restrict dots,
                                                std::int32_t zeros, const float* __restrict scales, float scale) {
    for (int lane = 0; lane < panel_layout::outputs; ++lane)
      to[lane] = std::fma(static_cast<float>(dots[lane] - zeros), scales[lane] * scale, to[lane]);
  }

  [[gnu::always_inline]] static void add_offsets(float* __restrict to, const float* __restrict offsets, float sum) {
    for (int lane = 0; lane < panel_layout::outputs; ++lane)
      to[lane] = std::fma(offsets[lane], sum, to[lane]);
  }

  TilesT tiles_;
  int rows_ = 0, halves_ = 0;  // rows and halves that the tiles are configured for
};

#if defined(__x86_64__)

// The tiles of AMX. They are written as assembly, since the intrinsics of GCC 12 do not say that they read memory.
struct amx_tiles {
  [[gnu::target("amx-tile")]] static void configure(const tile_shapes& shapes) {
    asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory");
  }
  [[gnu::target("amx-tile")]] static void release() { asm volatile("tilerelease" : : : "memory"); }
  template <int T>
  [[gnu::target("amx-tile")]] static void load(const void* from, std::ptrdiff_t stride) {
    asm volatile("{tileloadd (%0,%1,1), %%tmm%c2|tileloadd tmm%c2, [%0+%1*1]}"
                 :
                 : "r"(from), "r"(stride), "i"(T)
                 : "memory");
  }
  template <int T>
  [[gnu::target("amx-tile")]] static void clear() {
    asm volatile("{tilezero %%tmm%c0|tilezero tmm%c0}" : : "i"(T));
  }
  template <int SumT, int SignedT, int UnsignedT>
  [[gnu::target("amx-int8")]] static void multiply() {
    asm volatile("{tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0|tdpbsud tmm%c0, tmm%c1, tmm%c2}"
                 :
                 : "i"(SumT), "i"(SignedT), "i"(UnsignedT));
  }
  template <int T>
  [[gnu::target("amx-tile")]] static void store(void* to, std::ptrdiff_t stride) {
    asm volatile("{tilestored %%tmm%c2, (%0,%1,1)|tilestored [%0+%1*1], tmm%c2}"
                 :
                 : "r"(to), "r"(stride), "i"(T)
                 : "memory");
  }
};

#if defined(__clang__)
[[gnu::target("avx512f,avx512bw,avx512vl,avx512vnni,amx-tile,amx-int8")]]
#else
[[gnu::target("avx512f,avx512bw,avx512vl,avx512vnni,amx-tile,amx-int8,prefer-vector-width=512")]]
#endif
inline void
multiply_amx(tile_product<amx_tiles>& tiles, const integer_product& p) {
  tiles.multiply(p);
}

[[gnu::target("amx-tile")]] inline void release_amx(tile_product<amx_tiles>& tiles) {
  tiles.release();
}

#endif

}  // namespace espalier::detail
