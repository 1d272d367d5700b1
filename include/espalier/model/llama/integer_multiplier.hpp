// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/integer_product.cpp
#pragma once

#include "espalier/model/llama/instruction_set.hpp"
#include "espalier/model/llama/integer_product.hpp"
#include "espalier/model/llama/tile_product.hpp"

namespace espalier::detail {

// A maker of products of integers for one thread, with an instruction set. With AMX, the destructor gives the tiles the
// shapes that they had before.
class integer_multiplier {
 public:
  // Least number of rows that are multiplied by tiles. Fewer are multiplied by AVX-512.
  static constexpr int tile_rows = 2;

  // Pre: the processor has the set.
  explicit integer_multiplier(instruction_set set) : set_(set) {}
  integer_multiplier(const integer_multiplier&) = delete;
  integer_multiplier& operator=(const integer_multiplier&) = delete;

#if defined(__x86_64__)
  ~integer_multiplier() {
    if (set_ == instruction_set::amx) restore_amx(tiles_);
  }
#endif

  // Returns whether products of so many rows take activations as bytes, not as words.
  static constexpr bool takes_bytes(instruction_set set, int rows) {
    return set == instruction_set::neon || set == instruction_set::neon_i8mm ||
           (set == instruction_set::amx && rows >= tile_rows);
  }

  // Makes a product, and calls finish(row, sums) for its rows, as integer_product says.
  template <class FinishT>
  void multiply(const integer_product& p, const FinishT& finish) {
#if defined(__x86_64__)
    if (set_ == instruction_set::amx && p.rows >= tile_rows) return multiply_amx(tiles_, p, finish);
    if (set_ == instruction_set::amx || set_ == instruction_set::avx512) return multiply_avx512(p, finish);
    if (set_ == instruction_set::avx2) return multiply_avx2(p, finish);
    if (set_ == instruction_set::avx_vnni) return multiply_avx_vnni(p, finish);
    if (set_ == instruction_set::avx512_256) return multiply_avx512_vnni_256(p, finish);
#elif ESPALIER_NEON_DOT_PRODUCTS
#if ESPALIER_NEON_MATRIX_PRODUCTS
    if (set_ == instruction_set::neon_i8mm) return multiply_i8mm(p, finish);
#endif
    if (set_ == instruction_set::neon) return multiply_neon(p, finish);
#endif
    (void)set_;
    multiply_portably(p, finish);
  }

 private:
  instruction_set set_;
#if defined(__x86_64__)
  tile_product<amx_tiles> tiles_;
#endif
};

}  // namespace espalier::detail
