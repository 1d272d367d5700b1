// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <random>

namespace espalier {

//! A random seed, another each time: for texts that need not be written again.
inline std::uint64_t fresh_seed() {
  // Kept: to open one asks the processor what it can do, which takes a virtual machine 16 microseconds.
  thread_local std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

}  // namespace espalier
