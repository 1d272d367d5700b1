// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace bench {

// Makes the compiler assume that the memory is read and written.
template <class T>
void touch(T* data) {
  asm volatile("" : : "r"(data) : "memory");
}

// Reads every number once and does nothing else: no look at a row can cost less.
inline void read_pass(std::span<const float> row) {
  std::uint32_t bits[64] = {};
  for (std::size_t i = 0; i + 64 <= row.size(); i += 64) {
    for (std::size_t l = 0; l < 64; ++l)
      bits[l] |= std::bit_cast<std::uint32_t>(row[i + l]);
  }
  touch(bits);
}

}  // namespace bench
