// SPDX-License-Identifier: BSL-1.0
#include <espalier/registry.hpp>

int main() {
  int n = 0;
  espalier::for_each_compatible_pair([&](const auto&, const auto&) { ++n; });
  return n > 0 ? 0 : 1;
}
