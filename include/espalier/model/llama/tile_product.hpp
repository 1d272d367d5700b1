// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "espalier/model/llama/activation_rows.hpp"
#include "espalier/model/llama/integer_product.hpp"
#include "espalier/model/llama/panel_layout.hpp"

namespace espalier::detail {

// The shapes of the tiles of a processor with AMX, as its instructions read and write them. A tile with 0 rows is not
// used; with palette 0, no tile is used.
struct alignas(64) tile_shapes {
  static constexpr int max_rows = 16, max_row_bytes = 64;

  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(tile_shapes) == 64);

// A maker of products in tiles of up to 16 rows and 16 outputs, from activations as bytes. The products equal those of
// every other kernel.
//
// A product of tiles has two factors. A row of the one is a half of a panel's vector: four inputs of 16 outputs. A row
// of the other is one byte of each activation in a row's block. So tiles are loaded from where these numbers lie, and
// nothing is copied before. The sums stay in four tiles from the first input to the last: one tile for each half of the
// 32 outputs and each byte of the activations.
//
// Tiles belong to the thread, and other code in the thread may rely on the shapes that it gave them. So the shapes are
// saved before the first product, and restore() sets them again.
//
// TilesT has tiles with numbers from 0 to 7, and these members:
//
//   save(shapes)                     writes the shapes that the tiles have now
//   configure(shapes)                sets the shapes of the tiles; all tiles become zero
//   load<T>(from, stride)            loads tile T from memory, where its rows are `stride` bytes apart
//   clear<T>()                       makes tile T zero
//   multiply<SumT, RowsT, FoursT>()  Sum[m][n] += over k of Rows[m][k] Fours[k / 4][4 n + k % 4], bytes with signs
//   store<T>(to, stride)             stores tile T in memory, its rows `stride` bytes apart
template <class TilesT>
class tile_product {
 public:
  tile_product() = default;
  explicit tile_product(const TilesT& tiles) : tiles_(tiles) {}
  tile_product(const tile_product&) = delete;
  tile_product& operator=(const tile_product&) = delete;

  // Makes a product, and calls finish(row, sums) once for each row. p.sums is not used.
  //
  // Pre         restore() will be called in the same thread, before the object is destroyed
  template <class FinishT>
  [[gnu::always_inline]] void multiply(const integer_product& p, const FinishT& finish) {
    const int tiles = (p.rows + tile_shapes::max_rows - 1) / tile_shapes::max_rows, rows = (p.rows + tiles - 1) / tiles;
    configure(rows);
    panel_fetcher behind(p, tiles, row_lines * p.rows);
    for (int tile = 0; tile < tiles; ++tile) {
      // The last tile may begin with rows of the tile before it, so that all tiles have as many rows; they are not
      // finished again.
      const int first = (std::min)(tile * rows, p.rows - rows);
      multiply_rows(p, first, behind);
      for (int row = tile * rows - first; row < rows; ++row) {
        alignas(64) double of_row[panel_layout::outputs];
        add_bytes(of_bytes_[0][row], of_bytes_[1][row], of_row);
        behind.fetch(row_lines);
        finish(first + row, of_row);
      }
    }
  }

  // Sets the shapes that the tiles had before the first product; does nothing if no product was made.
  [[gnu::always_inline]] void restore() {
    if (rows_ != 0) tiles_.configure(before_);
    rows_ = 0;
  }

 private:
  // Number of the first tile of each kind: weights [half of the outputs], activations [byte], sums
  // [half of the outputs][byte].
  static constexpr int weights = 0, activations = 2, sums = 4;

  // Cache lines of the next panel that are fetched with each row that is finished.
  static constexpr int row_lines = 3;

  // Bytes and cache lines of a panel's weights for a block of activations.
  static constexpr int block_bytes = panel_layout::outputs * activation_block::size, block_lines = block_bytes / 64;

  [[gnu::always_inline]] void configure(int rows) {
    if (rows == rows_) return;
    if (rows_ == 0) tiles_.save(before_);
    rows_ = rows;
    tile_shapes shapes;
    for (int tile = 0; tile < 8; ++tile) {
      shapes.rows[tile] = static_cast<std::uint8_t>(tile < activations ? activation_block::size / 4 : rows);
      shapes.row_bytes[tile] = tile_shapes::max_row_bytes;
    }
    tiles_.configure(shapes);
  }

  // Multiplies the rows of a tile, from `first` on, for which the tiles are configured, and leaves the sums in
  // of_bytes_.
  [[gnu::always_inline]] void multiply_rows(const integer_product& p, int first, panel_fetcher& behind) {
    constexpr auto stride = static_cast<std::ptrdiff_t>(panel_layout::vector_bytes);
    const std::byte* from = p.weights;
    const activation_block* x = p.x + first;
    tiles_.template clear<sums>();
    tiles_.template clear<sums + 1>();
    tiles_.template clear<sums + 2>();
    tiles_.template clear<sums + 3>();
    for (int b = 0; b < p.blocks; ++b, from += block_bytes, x += p.rows) {
      behind.fetch();
      tiles_.template load<weights>(from, stride);
      // The next block comes into the first cache.
      for (int line = 0; line < block_lines; ++line)
        __builtin_prefetch(from + block_bytes + 64 * line, 0, 3);
      tiles_.template load<activations>(x->bytes[0], sizeof *x);
      tiles_.template multiply<sums, activations, weights>();
      tiles_.template load<activations + 1>(x->bytes[1], sizeof *x);
      tiles_.template multiply<sums + 1, activations + 1, weights>();
      tiles_.template load<weights + 1>(from + tile_shapes::max_row_bytes, stride);
      tiles_.template multiply<sums + 2, activations, weights + 1>();
      tiles_.template multiply<sums + 3, activations + 1, weights + 1>();
    }
    constexpr int half = panel_layout::outputs / 2;
    constexpr auto of_row = static_cast<std::ptrdiff_t>(sizeof of_bytes_[0][0]);
    tiles_.template store<sums>(of_bytes_[0][0], of_row);
    tiles_.template store<sums + 1>(of_bytes_[1][0], of_row);
    tiles_.template store<sums + 2>(of_bytes_[0][0] + half, of_row);
    tiles_.template store<sums + 3>(of_bytes_[1][0] + half, of_row);
  }

  [[gnu::always_inline]] static void add_bytes(const std::int32_t* __restrict first,
                                               const std::int32_t* __restrict second, double* __restrict to) {
    for (int o = 0; o < panel_layout::outputs; ++o)
      to[o] = 256.0 * first[o] + second[o];
  }

  TilesT tiles_;
  tile_shapes before_;
  alignas(64) std::int32_t of_bytes_[2][tile_shapes::max_rows][panel_layout::outputs];  // sums for either byte
  int rows_ = 0;  // rows that the tiles are configured for; 0: they have the shapes that other code gave them
};

#if defined(__x86_64__)

// The tiles of AMX. Its members are assembly, since the intrinsics of GCC 12 do not say that they read memory.
struct amx_tiles {
  [[gnu::target("amx-tile")]] static void save(tile_shapes& shapes) {
    asm volatile("sttilecfg %0" : "=m"(shapes) : : "memory");
  }
  [[gnu::target("amx-tile")]] static void configure(const tile_shapes& shapes) {
    asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory");
  }
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
  template <int SumT, int RowsT, int FoursT>
  [[gnu::target("amx-int8")]] static void multiply() {
    asm volatile("{tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0|tdpbssd tmm%c0, tmm%c1, tmm%c2}"
                 :
                 : "i"(SumT), "i"(RowsT), "i"(FoursT));
  }
  template <int T>
  [[gnu::target("amx-tile")]] static void store(void* to, std::ptrdiff_t stride) {
    asm volatile("{tilestored %%tmm%c2, (%0,%1,1)|tilestored [%0+%1*1], tmm%c2}"
                 :
                 : "r"(to), "r"(stride), "i"(T)
                 : "memory");
  }
};

template <class FinishT>
#if defined(__clang__)
[[gnu::target("avx512f,avx512bw,avx512vl,avx512vnni,amx-tile,amx-int8")]]
#else
[[gnu::target("avx512f,avx512bw,avx512vl,avx512vnni,amx-tile,amx-int8,prefer-vector-width=512")]]
#endif
void multiply_amx(tile_product<amx_tiles>& tiles, const integer_product& p, const FinishT& finish) {
  tiles.multiply(p, finish);
}

[[gnu::target("amx-tile")]] inline void restore_amx(tile_product<amx_tiles>& tiles) {
  tiles.restore();
}

#endif

}  // namespace espalier::detail
