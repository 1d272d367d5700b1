// SPDX-License-Identifier: BSL-1.0
#include "espalier/report/token_label.hpp"

#include "catch.hpp"

using espalier::token_label;

TEST_CASE("a label shows what cannot be seen", "[token_label]") {
  CHECK(token_label(" the").text == "·the");
  CHECK(token_label("\n").text == "↵");
  CHECK(token_label("\t").text == "⇥");
  CHECK(token_label("").text == "∅");
  CHECK(token_label("\x1b[31m").text == "\\x1B[31m");
  CHECK(token_label("\xE6\x97").text == "\\xE6\\x97");
  CHECK(token_label("\x80z").text == "\\x80z");
  CHECK(token_label("\xC2\x85").text == "\\xC2\\x85");
  CHECK(token_label("日本").text == "日本");
  CHECK(token_label("日本").width == 4);
  CHECK(token_label("e\xCC\x81").width == 1);
}

TEST_CASE("an ASCII label has bytes below 128 only", "[token_label]") {
  CHECK(token_label(" é\n", true).text == "_\\xC3\\xA9\\n");
  CHECK(token_label("", true).text == "(none)");
  CHECK(token_label("abcdefgh", true, 5).text == "abcd~");
}

TEST_CASE("a long label is cut to its width, with a mark", "[token_label]") {
  CHECK(token_label("international", false, 6).text == "inter…");
  CHECK(token_label("international", false, 6).width == 6);
  CHECK(token_label("inter", false, 5).text == "inter");
  CHECK(token_label("日本語", false, 5).text == "日本…");
  CHECK(token_label("\n\n\n\n\n", false, 4).text == "↵↵↵…");
}
