// SPDX-License-Identifier: BSL-1.0
#include "espalier/core/util/nearest_name.hpp"

#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"

using namespace espalier;

TEST_CASE("the distance of two words is the number of letters to change") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("length", "length") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("lenght", "length") == 1);
  CHECK(edit_distance("temprature", "temperature") == 1);
  CHECK(edit_distance("treshold", "threshold") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("sitting", "kitten") == 3);
}

TEST_CASE("a misspelt name has a nearest one, and a strange one has none") {
  const std::vector<std::string> names{"--length", "--max-length", "--threshold", "--top-k", "--top-p"};
  CHECK(nearest_name("--lenght", names) == "--length");
  CHECK(nearest_name("--treshhold", names) == "--threshold");
  CHECK(nearest_name("--maxlength", names) == "--max-length");
  CHECK(nearest_name("--top-q", names) == "--top-k");  // the first of two that are as near
  CHECK(nearest_name("--nonsense", names).empty());
  CHECK(nearest_name("", names).empty());
  CHECK(nearest_name("x", std::vector<std::string_view>{}).empty());
}
