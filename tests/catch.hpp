// SPDX-License-Identifier: BSL-1.0
#pragma once

// Catch2 2.13 and 3 under the names of version 3: CMake defines which of them it found. Tests include this and nothing
// of Catch2's own.

#if ESPALIER_CATCH2 == 3
#include <catch2/catch_all.hpp>

using Catch::Approx;
#else
#include <string>

#include <catch2/catch.hpp>

namespace Catch::Matchers {

inline auto ContainsSubstring(const std::string& text) {
  return Contains(text);
}

}  // namespace Catch::Matchers
#endif
