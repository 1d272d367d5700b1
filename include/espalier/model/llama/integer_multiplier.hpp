// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/integer_product.cpp
#pragma once

#include "espalier/model/llama/instruction_set.hpp"
#include "espalier/model/llama/integer_product.hpp"
#include "espalier/model/llama/tile_product.hpp"

namespace espalier::detail {

// The products of integers of one thread, made with an instruction set. The destructor gives back the tiles that a
// product took.
class integer_multiplier {
 public:
  // Least number of rows that are multiplied by tiles. From here on a row costs half the instructions that it costs
  // without tiles; a tile of few rows may take as long as one of 16. Counted, not measured.
  static constexpr int tile_rows = 8;

  // Pre: the processor has the set.
  explicit integer_multiplier(instruction_set set) : set_(set) {}
  integer_multiplier(const integer_multiplier&) = delete;
  integer_multiplier& operator=(const integer_multiplier&) = delete;

#if defined(__x86_64__)
  ~integer_multiplier() {
    if (set_ == instruction_set::amx) release_amx(tiles_);
  }
#endif

  void multiply(const integer_product& p) {
#if defined(__x86_64__)
    if (set_ == instruction_set::amx && p.rows >= tile_rows) return multiply_amx(tiles_, p);
    if (set_ == instruction_set::amx || set_ == instruction_set::avx512) return multiply_avx512(p);
    if (set_ == instruction_set::avx2) return multiply_avx2(p);
    if (set_ == instruction_set::avx_vnni) return multiply_avx_vnni(p);
    if (set_ == instruction_set::avx512_256) return multiply_avx512_vnni_256(p);
#elif ESPALIER_NEON_DOT_PRODUCTS
    if (set_ == instruction_set::neon) return multiply_neon(p);
#endif
    (void)set_;
    multiply_portably(p);
  }

 private:
  instruction_set set_;
#if defined(__x86_64__)
  tile_product<amx_tiles> tiles_;
#endif
};

}  // namespace espalier::detail
