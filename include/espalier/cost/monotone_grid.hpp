// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cost/cost_curve.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "espalier/core/error.hpp"

namespace espalier::detail {

// Replaces n numbers, `stride` apart, by the non-decreasing sequence nearest to them in least squares: pool adjacent
// violators.
inline void make_ascending(double* values, std::size_t n, std::size_t stride) {
  struct pool {
    double sum;
    std::size_t n;
    double mean() const { return sum / static_cast<double>(n); }
  };
  std::vector<pool> pools;
  for (std::size_t i = 0; i < n; ++i) {
    pools.push_back({values[i * stride], 1});
    while (pools.size() > 1 && pools[pools.size() - 2].mean() > pools.back().mean()) {
      pools[pools.size() - 2].sum += pools.back().sum;
      pools[pools.size() - 2].n += pools.back().n;
      pools.pop_back();
    }
  }
  for (const pool& p : pools) {
    for (std::size_t i = 0; i < p.n; ++i, values += stride)
      *values = p.mean();
  }
}

// Replaces a grid [n_rows][n_columns] by the nearest one in least squares among those that decrease neither along rows
// nor along columns: Dykstra's alternating projections. Numbers that still decrease when the iteration ends are raised
// to their neighbours. A grid that does not decrease stays unchanged.
inline void make_monotone(std::vector<double>& grid, std::size_t n_columns) {
  const std::size_t n_rows = grid.size() / n_columns;
  std::vector<double> along_rows(grid.size(), 0.0), along_columns(grid.size(), 0.0);
  const auto project = [&](std::vector<double>& correction, const auto& make) {
    for (std::size_t i = 0; i < grid.size(); ++i)
      correction[i] += grid[i];
    grid = correction;
    make();
    for (std::size_t i = 0; i < grid.size(); ++i)
      correction[i] -= grid[i];
  };
  constexpr int most_turns = 1000;
  for (int turn = 0; turn < most_turns; ++turn) {
    const std::vector<double> before = grid;
    project(along_rows, [&] {
      for (std::size_t r = 0; r < n_rows; ++r)
        make_ascending(grid.data() + r * n_columns, n_columns, 1);
    });
    project(along_columns, [&] {
      for (std::size_t c = 0; c < n_columns; ++c)
        make_ascending(grid.data() + c, n_rows, n_columns);
    });
    double moved = 0;
    for (std::size_t i = 0; i < grid.size(); ++i)
      moved = (std::max)(moved, std::abs(grid[i] - before[i]));
    if (moved <= 1e-12 * *std::max_element(grid.begin(), grid.end())) break;
  }
  for (std::size_t r = 0; r < n_rows; ++r) {
    for (std::size_t c = 0; c < n_columns; ++c) {
      double& here = grid[r * n_columns + c];
      if (r > 0) here = (std::max)(here, grid[(r - 1) * n_columns + c]);
      if (c > 0) here = (std::max)(here, grid[r * n_columns + c - 1]);
    }
  }
}

// Describes the fault that makes a grid unfit for a cost curve, as the rest of a sentence that begins "a cost curve's";
// empty if there is none.
inline std::string fault_of_grid(const std::vector<std::int32_t>& rows, const std::vector<std::int32_t>& contexts,
                                 const std::vector<double>& seconds) {
  const auto ascends = [](const std::vector<std::int32_t>& grid, std::int32_t least) {
    for (std::size_t i = 0; i < grid.size(); ++i) {
      if (i == 0 ? grid[i] < least : grid[i] <= grid[i - 1]) return false;
    }
    return !grid.empty();
  };
  if (!ascends(rows, 1)) return "rows are not ascending numbers from 1 on.";
  if (!ascends(contexts, 0)) return "contexts are not ascending numbers from 0 on.";
  if (seconds.size() != rows.size() * contexts.size()) {
    return "seconds are " + in_words(seconds.size()) + " numbers, but must be one for each of " +
           in_words(rows.size()) + " numbers of rows and " + in_words(contexts.size()) + " contexts.";
  }
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const std::size_t r = i / contexts.size(), c = i % contexts.size();
    const std::string pass = "seconds of " + in_words(rows[r]) + " rows after " + in_words(contexts[c]) +
                             " tokens are " + in_words(seconds[i]);
    if (!(seconds[i] >= 0) || std::isinf(seconds[i])) return pass + ", but must be a number from 0 on.";
    if (r > 0 && seconds[i] < seconds[i - contexts.size()]) return pass + ", less than those of fewer rows.";
    if (c > 0 && seconds[i] < seconds[i - 1]) return pass + ", less than those after a shorter context.";
  }
  return {};
}

}  // namespace espalier::detail
