// SPDX-License-Identifier: BSL-1.0
// Tested by tests/report/pictures.cpp
#pragma once

#include <string>
#include <string_view>

namespace espalier::detail {

// Returns the text with the special characters of XML escaped, for use as text or as the value of an attribute in
// double quotes.
inline std::string xml_escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

}  // namespace espalier::detail
