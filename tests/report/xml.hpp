// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/core/util/utf8.hpp"

namespace report_test {

inline int count(std::string_view text, std::string_view what) {
  int n = 0;
  for (std::size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + what.size()))
    ++n;
  return n;
}

// An XML reader that knows what pictures need: elements, quoted attributes, the predefined entities. Empty if all is
// well, else what is wrong.
inline std::string complaint(std::string_view xml) {
  std::vector<std::string> open;
  std::size_t at = 0;
  while (at < xml.size()) {
    const char c = xml[at];
    if (c == '&') {
      const std::size_t end = xml.find(';', at);
      const std::string_view entity = xml.substr(at, end == std::string_view::npos ? 8 : end - at + 1);
      const std::array<std::string_view, 4> known{"&amp;", "&lt;", "&gt;", "&quot;"};
      if (std::find(known.begin(), known.end(), entity) == known.end()) return "entity " + std::string(entity);
    }
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n') return "a control character";
    if (c != '<') {
      const auto character = espalier::read_utf8(xml.substr(at));
      if (character.what != espalier::utf8_character::state::valid) return "no UTF-8";
      at += character.bytes;
      continue;
    }
    static const std::regex tag(R"(<(/?)([a-zA-Z]+)((?:\s+[a-zA-Z][a-zA-Z0-9:-]*="[^"<]*")*)\s*(/?)>)");
    std::cmatch match;
    if (!std::regex_search(xml.data() + at, xml.data() + xml.size(), match, tag,
                           std::regex_constants::match_continuous))
      return "tag " + std::string(xml.substr(at, 40));
    if (match[1].length() > 0) {
      if (open.empty() || open.back() != match[2].str()) return "end of " + match[2].str();
      open.pop_back();
    } else if (match[4].length() == 0) {
      open.push_back(match[2].str());
    }
    at += static_cast<std::size_t>(match[0].length());
  }
  return open.empty() ? "" : "no end of " + open.back();
}

}  // namespace report_test
