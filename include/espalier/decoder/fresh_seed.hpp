// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/config.hpp"

#if ESPALIER_HOSTED
#include <random>
#endif

namespace espalier {

//! A random seed, another each time: for texts that need not be written again. Where ESPALIER_HOSTED is 0, always 0:
//! such a machine has its own source, if any.
inline std::uint64_t fresh_seed() {
#if ESPALIER_HOSTED
  // Kept: to open one asks the processor what it can do, which takes a virtual machine 16 microseconds.
  thread_local std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
#else
  return 0;
#endif
}

}  // namespace espalier
