// SPDX-License-Identifier: BSL-1.0
// Tested by tests/core/util/bytes.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace espalier::detail {

// Returns the FNV-1a hash of some bytes, 64 bits. Given the hash of other bytes, it returns that of those bytes with
// these behind them.
//
// Source: Fowler, Noll and Vo, The FNV Non-Cryptographic Hash Algorithm
inline std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t before = 0xCBF29CE484222325U) {
  for (const std::byte b : bytes)
    before = (before ^ static_cast<std::uint64_t>(b)) * 0x100000001B3U;
  return before;
}

// Returns a hash in 16 hexadecimal digits.
inline std::string digits_of(std::uint64_t hash) {
  std::string digits;
  for (int shift = 60; shift >= 0; shift -= 4)
    digits += "0123456789abcdef"[hash >> shift & 15U];
  return digits;
}

}  // namespace espalier::detail
