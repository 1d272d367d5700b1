// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "espalier/testing/row_drafter.hpp"

// Row functions for espalier::testing::row_drafter: rows by the path from the root on.

// Rows by the last token, as in the vectors: row 0 is the row at the root, row 1 + t the row after token t.
inline espalier::testing::row_drafter::row_function markov_rows(std::vector<std::vector<double>> q) {
  return [q = std::move(q)](std::span<const espalier::token_id> path) {
    return path.size() == 1 ? q[0] : q[static_cast<std::size_t>(path.back()) + 1];
  };
}

// Irregular rows by the whole path, with zeros and many ties.
inline espalier::testing::row_drafter::row_function path_rows(std::uint32_t seed, std::int32_t vocab) {
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
