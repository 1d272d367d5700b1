// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "espalier/core/tree.hpp"
#include "espalier/core/verdict.hpp"

namespace report_test {

inline const std::vector<std::string> pieces = {
    " the", "house", " <&\"'>", "\n",   "\xE6", "日本", "    ", "]]>",
    "",     "\\n",   "é",       " was", "-->",  "\x1b", "%",    " international"};

inline std::string text_of(espalier::token_id token) {
  return pieces[static_cast<std::size_t>(token)];
}

struct drafted {
  espalier::tree<> tree{256};
  espalier::verdict decision;
};

// Trees of all shapes up to 256 nodes, some with repeated draws, and a verdict somewhere in each; now and then its
// token was drafted, as where a session stops in the middle of a path.
inline drafted random_tree(unsigned seed) {
  std::mt19937 engine(seed);
  const auto below = [&](unsigned n) { return static_cast<std::int32_t>(static_cast<unsigned>(engine()) % n); };
  drafted d;
  const auto limit = 1U + static_cast<unsigned>(engine() % 256U);
  d.tree.reset(below(16), static_cast<int>(limit) - 1);
  const auto reach = 1U + static_cast<unsigned>(engine() % 24U);  // long and thin to short and broad
  while (!d.tree.full()) {
    const std::int32_t n = d.tree.size();
    const std::int32_t parent = n - 1 - below(std::min<unsigned>(reach, static_cast<unsigned>(n)));
    d.tree.draw(parent, below(16), std::log(0.001F + 0.9F * static_cast<float>(below(1000)) / 1000.0F));
  }
  d.decision = {below(static_cast<unsigned>(d.tree.size())), below(16)};
  return d;
}

}  // namespace report_test
