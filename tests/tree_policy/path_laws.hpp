// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "espalier/testing/row_drafter.hpp"

// Laws for a espalier::testing::row_drafter, of the path from the root on.

// Rows by the last token, as in the vectors: row 0 is the law at the root, row 1 + t that after token t.
inline espalier::testing::row_drafter::row_function markov_law(std::vector<std::vector<double>> q) {
  return [q = std::move(q)](std::span<const espalier::token_id> path) {
    return path.size() == 1 ? q[0] : q[static_cast<std::size_t>(path.back()) + 1];
  };
}

// Irregular, with zeros and many ties.
inline espalier::testing::row_drafter::row_function path_law(std::uint32_t seed, std::int32_t vocab) {
  return [seed, vocab](std::span<const espalier::token_id> path) {
    std::uint32_t key = seed;
    for (const espalier::token_id t : path)
      key = key * 31 + static_cast<std::uint32_t>(t) + 1;
    std::mt19937 random(key);
    std::vector<double> row(static_cast<std::size_t>(vocab), 0.0);
    for (int i = 0; i < 4; ++i)
      row[random() % row.size()] += 0.25;
    return row;
  };
}
