// SPDX-License-Identifier: BSL-1.0
#include "espalier/core/util/utf8.hpp"

#include <string>
#include <string_view>

#include "catch.hpp"

namespace {

using espalier::read_utf8;
using state = espalier::utf8_character::state;

std::string encode(char32_t code) {
  const auto byte = [](char32_t b) { return static_cast<char>(b); };
  if (code < 0x80) return {byte(code)};
  if (code < 0x800) return {byte(0xC0 | code >> 6), byte(0x80 | (code & 0x3F))};
  if (code < 0x10000) return {byte(0xE0 | code >> 12), byte(0x80 | (code >> 6 & 0x3F)), byte(0x80 | (code & 0x3F))};
  return {byte(0xF0 | code >> 18), byte(0x80 | (code >> 12 & 0x3F)), byte(0x80 | (code >> 6 & 0x3F)),
          byte(0x80 | (code & 0x3F))};
}

}  // namespace

TEST_CASE("every character is read back, whole or cut", "[utf8]") {
  int wrong = 0;
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    const std::string bytes = encode(code);
    const auto whole = read_utf8(bytes + "x");
    if (code >= 0xD800 && code <= 0xDFFF) {
      wrong += whole.what == state::broken && whole.bytes == 1 ? 0 : 1;
      continue;
    }
    wrong += whole.what == state::valid && whole.code == code && whole.bytes == bytes.size() ? 0 : 1;
    for (std::size_t n = 1; n < bytes.size(); ++n) {
      const auto part = read_utf8(std::string_view(bytes).substr(0, n));
      wrong += part.what == state::cut && part.bytes == n ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("what is no character is broken after one byte", "[utf8]") {
  for (const std::string_view bytes : {"\x80", "\xBF", "\xC0\xAF", "\xC1\x81", "\xE0\x80\x80", "\xF0\x8F\xBF\xBF",
                                       "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE2\x28\xA1", "\xC3("}) {
    INFO(bytes);
    CHECK(read_utf8(bytes).what == state::broken);
    CHECK(read_utf8(bytes).bytes == 1);
  }
}
