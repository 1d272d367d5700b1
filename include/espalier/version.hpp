// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string_view>

//! The version of the library. CMake, pip, Conan and the scripts of packages read it from here.
#define ESPALIER_VERSION_MAJOR 0
#define ESPALIER_VERSION_MINOR 2
#define ESPALIER_VERSION_PATCH 0

#define ESPALIER_QUOTE_VALUE(text) #text
#define ESPALIER_QUOTE(macro) ESPALIER_QUOTE_VALUE(macro)

namespace espalier {

//! The version of the library, such as "0.2.0".
constexpr std::string_view version() {
  return ESPALIER_QUOTE(ESPALIER_VERSION_MAJOR) "." ESPALIER_QUOTE(ESPALIER_VERSION_MINOR) "." ESPALIER_QUOTE(
      ESPALIER_VERSION_PATCH);
}

}  // namespace espalier

#undef ESPALIER_QUOTE
#undef ESPALIER_QUOTE_VALUE
