// SPDX-License-Identifier: BSL-1.0
#include "generate/text_stream.hpp"

#include <sstream>
#include <string>
#include <string_view>

#include "catch.hpp"

using generate::author;
using generate::text_stream;

TEST_CASE("a character that is spread over tokens is shown once it is whole", "[text_stream]") {
  std::ostringstream out;
  text_stream stream(out, false);
  stream.push("a\xE6", author::draft);
  CHECK(out.str() == "a");
  stream.push("\x97", author::draft);
  CHECK(out.str() == "a");
  stream.push("\xA5z", author::target);
  CHECK(out.str() == "a\xE6\x97\xA5z");
  stream.finish();
  CHECK(out.str() == "a\xE6\x97\xA5z");
}

TEST_CASE("what is no character shows as a mark, also at the end", "[text_stream]") {
  std::ostringstream out;
  text_stream stream(out, false);
  stream.push("\xFF\x1b[31m\r\n\t\x7F", author::draft);
  stream.push("\xE6", author::draft);
  stream.finish();
  CHECK(out.str() == "\xEF\xBF\xBD\xEF\xBF\xBD[31m\xEF\xBF\xBD\n\t\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST_CASE("the order of pieces does not change the text", "[text_stream]") {
  const std::string text = "x\xC3\xA9\xF0\x9F\x98\x80\xE6\x97\xA5!";
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (std::size_t second = first; second <= text.size(); ++second) {
      std::ostringstream out;
      text_stream stream(out, false);
      const std::string_view view = text;
      stream.push(view.substr(0, first), author::target);
      stream.push(view.substr(first, second - first), author::draft);
      stream.push(view.substr(second), author::target);
      stream.finish();
      CHECK(out.str() == text);
    }
  }
}

TEST_CASE("colours change where the author does, and end", "[text_stream]") {
  std::ostringstream out;
  text_stream stream(out, true);
  stream.push("p", author::prompt);
  stream.push("a", author::draft);
  stream.push("b", author::draft);
  stream.push("c", author::target);
  stream.finish();
  CHECK(out.str() == "\x1b[0;2mp\x1b[0;32mab\x1b[0;35mc\x1b[0m");
  std::ostringstream silent;
  text_stream nothing(silent, true);
  nothing.finish();
  CHECK(silent.str().empty());
}
