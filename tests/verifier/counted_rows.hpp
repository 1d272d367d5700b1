// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"

// Target rows that count who was asked for.
struct counted_rows {
  std::vector<std::vector<double>> distributions;
  std::vector<int> asked = std::vector<int>(distributions.size(), 0);
  std::span<const double> row(espalier::node_id u) {
    ++asked[static_cast<std::size_t>(u)];
    return distributions[static_cast<std::size_t>(u)];
  }
  espalier::token_id argmax(espalier::node_id u) {
    const auto r = row(u);
    return static_cast<espalier::token_id>(std::max_element(r.begin(), r.end()) - r.begin());
  }
};

inline counted_rows random_rows(int n, int vocab, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<double>> distributions(static_cast<std::size_t>(n));
  for (auto& row : distributions) {
    double total = 0;
    for (int t = 0; t < vocab; ++t) {
      row.push_back(static_cast<double>(random() % 5));
      total += row.back();
    }
    if (total == 0) total = row[0] = 1;
    for (double& p : row)
      p /= total;
  }
  return {std::move(distributions)};
}
