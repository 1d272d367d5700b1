// SPDX-License-Identifier: BSL-1.0
#include "espalier/core/tree_limit.hpp"

#include <cstddef>
#include <set>
#include <string>

#include "catch.hpp"

using namespace espalier;

TEST_CASE("every limit of a tree has a word of its own") {
  std::set<std::string> words;
  for (std::size_t i = 0; i < n_tree_limits; ++i)
    words.insert(to_string(static_cast<tree_limit>(i)));
  CHECK(words.size() == n_tree_limits);
  CHECK(to_string(tree_limit::none) == std::string("none"));
  CHECK(to_string(static_cast<tree_limit>(n_tree_limits - 1)) == std::string("draft-error"));
}
