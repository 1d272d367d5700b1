// SPDX-License-Identifier: BSL-1.0
#include "espalier/version.hpp"

#include <string>

#include "catch.hpp"

TEST_CASE("the version is that of the CMake project") {
  CHECK(espalier::version() == ESPALIER_TEST_VERSION);
  const std::string numbers = std::to_string(ESPALIER_VERSION_MAJOR) + "." + std::to_string(ESPALIER_VERSION_MINOR) +
                              "." + std::to_string(ESPALIER_VERSION_PATCH);
  CHECK(espalier::version() == numbers);
}
