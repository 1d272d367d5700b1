// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/config.hpp"

namespace espalier::cuda {

//! Where a matrix of 16-bit numbers lies in shared memory, as products of warpgroups are told (ptx::start_product).
//!
//! A row is 64 numbers, 128 bytes; rows follow each other; chunk c of 16 bytes of row r lies where chunk c ^ (r % 8)
//! would (128-byte swizzle). As the right side of a product a row is a column of terms, of which one instruction takes
//! 16; transposed, it is one of the terms. For the 16 terms from 16 i on the matrix begins 32 i bytes further,
//! transposed 2048 i.
//!
//! Pre         the first row begins at a multiple of 1024 bytes
//! Source      PTX ISA 9.0, 9.7.15.5.1: shared memory matrix layout, strides, canonical layouts, matrix descriptor
//!             format; 128-byte swizzling, K-major and MN-major
struct matrix_descriptor {
  std::uint64_t bits = 0;

  //! The leading dimension's offset is used by nothing of 64 rows or columns: 16 bytes, as is assumed there. From 8
  //! rows to the next 8 there are 1024.
  template <class AddressT>
  ESPALIER_HOST_DEVICE static constexpr matrix_descriptor at(AddressT address) {
    constexpr std::uint64_t leading = 16, stride = 1024, swizzle_128 = 1;
    return {(static_cast<std::uint64_t>(address) & 0x3FFFFU) >> 4 | leading >> 4 << 16 | stride >> 4 << 32 |
            swizzle_128 << 62};
  }
  //! The same from so many bytes further on. Pre: within the memory of a block, and so without a carry.
  ESPALIER_HOST_DEVICE constexpr matrix_descriptor moved(std::uint32_t bytes) const { return {bits + (bytes >> 4)}; }
};

}  // namespace espalier::cuda
