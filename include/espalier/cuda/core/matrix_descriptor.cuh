// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/attention/tree_attention.cu
#pragma once

#include <cstdint>

#include "espalier/config.hpp"

namespace espalier::cuda {

//! The position of a matrix of 16-bit numbers in shared memory, in the form that products of warpgroups take
//! (ptx::start_product).
//!
//! A stored row has 64 numbers, 128 bytes, and rows follow each other. Chunk c of 16 bytes of row r is stored at the
//! position of chunk c ^ (r % 8) (128-byte swizzle). Instruction i of a product takes terms 16 i to 16 i + 15 of each
//! sum. If the right matrix is stored transposed, a stored row has 64 terms of one column, so that these 16 terms begin
//! 32 i bytes further. If it is not transposed, a stored row has one term of each of 64 columns, so that they begin
//! 2048 i bytes further.
//!
//! Pre         the first row begins at a multiple of 1024 bytes
//! Source      PTX ISA 9.0, 9.7.15.5.1: shared memory matrix layout, strides, canonical layouts, matrix descriptor
//!             format; 128-byte swizzling, K-major and MN-major
struct matrix_descriptor {
  std::uint64_t bits = 0;

  //! Returns the descriptor of a matrix at this address. With 64 rows or columns nothing uses the leading dimension's
  //! offset; it is set to 16 bytes, as the format assumes. The stride between groups of eight rows is 1024 bytes.
  template <class AddressT>
  ESPALIER_HOST_DEVICE static constexpr matrix_descriptor at(AddressT address) {
    constexpr std::uint64_t leading = 16, stride = 1024, swizzle_128 = 1;
    return {(static_cast<std::uint64_t>(address) & 0x3FFFFU) >> 4 | leading >> 4 << 16 | stride >> 4 << 32 |
            swizzle_128 << 62};
  }
  //! Returns the descriptor for an address `bytes` further. Pre: the address is in the same block's memory, so that
  //! there is no carry.
  ESPALIER_HOST_DEVICE constexpr matrix_descriptor moved(std::uint32_t bytes) const { return {bits + (bytes >> 4)}; }
};

}  // namespace espalier::cuda
