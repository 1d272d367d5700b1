// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/cost/monotone_grid.hpp"

namespace espalier {

//! One measurement: the time that a pass took.
struct cost_sample {
  std::int32_t rows = 0;     //!< rows of the pass
  std::int32_t context = 0;  //!< tokens that the cache held before it
  double seconds = 0;
};

//! Seconds of a forward pass as a function of its rows and of the length of the context. Neither more rows nor a longer
//! context ever makes a pass cheaper, whatever was measured.
//!
//! Between the grid's numbers of rows and lengths the curve is linear. Before the first grid point it is constant.
//! Beyond the last grid point it goes on with the last slope. The last slope over rows is taken as the steepest that
//! was measured at that length or a shorter one, and the last slope over lengths likewise, so that badly measured
//! slopes cannot make more work cost less. A pass of no rows costs nothing. If only one number of rows was measured,
//! all numbers of rows cost the same; likewise for lengths.
//!
//! Shapes      rows [n_rows], contexts [n_contexts], ascending; seconds [n_rows][n_contexts]
//! Complexity  operator(): two binary searches; no allocation
//! Law         non-decreasing in both arguments, up to rounding; equal to the samples at the grid points, if no sample
//!             is less than one of fewer rows or of a shorter context
class cost_curve {
 public:
  //! The curve nearest to the samples (least squares) among those that never decrease. Several samples of the same rows
  //! and context count as one, their median.
  //!
  //! Errors      input_error for no samples, for rows below 1, a context below 0, seconds that are negative or not
  //!             finite, and if some number of rows was not measured with every context
  static cost_curve fit(std::span<const cost_sample> samples) {
    if (samples.empty()) raise<input_error>("no pass was measured; a cost curve needs at least one sample.");
    std::vector<std::int32_t> rows, contexts;
    for (const cost_sample& s : samples) {
      if (s.rows < 1 || s.context < 0 || !(s.seconds >= 0) || std::isinf(s.seconds)) {
        raise<input_error>(
            "a pass of ", s.rows, " rows after ", s.context, " tokens is said to have taken ", s.seconds,
            " seconds; rows must be 1 or more, the context 0 or more, and the seconds a number from 0 on.");
      }
      rows.push_back(s.rows);
      contexts.push_back(s.context);
    }
    sort_once(rows);
    sort_once(contexts);
    std::vector<std::vector<double>> cells(rows.size() * contexts.size());
    for (const cost_sample& s : samples)
      cells[index_of(rows, s.rows) * contexts.size() + index_of(contexts, s.context)].push_back(s.seconds);
    std::vector<double> seconds;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (cells[i].empty()) {
        raise<input_error>("no pass of ", rows[i / contexts.size()], " rows was measured after ",
                           contexts[i % contexts.size()],
                           " tokens; every number of rows must be measured with every context.");
      }
      seconds.push_back(median(cells[i]));
    }
    detail::make_monotone(seconds, contexts.size());
    return cost_curve(std::move(rows), std::move(contexts), std::move(seconds));
  }

  //! The curve through the given points of a grid, which must not decrease.
  //!
  //! Shapes      seconds [n_rows][n_contexts]
  //! Errors      input_error for a grid that is empty or does not ascend, a wrong number of seconds, seconds that are
  //!             negative, not finite, or decrease
  static cost_curve of_grid(std::vector<std::int32_t> rows, std::vector<std::int32_t> contexts,
                            std::vector<double> seconds) {
    const std::string fault = detail::fault_of_grid(rows, contexts, seconds);
    if (!fault.empty()) raise<input_error>("a cost curve's ", fault);
    return cost_curve(std::move(rows), std::move(contexts), std::move(seconds));
  }

  //! The curve by which a pass of n rows costs first_row + (n - 1) * further_row, after any context.
  //!
  //! Errors      input_error for a number that is negative or not finite
  static cost_curve linear(double first_row, double further_row) {
    return of_grid({1, 2}, {0}, {first_row, first_row + further_row});
  }

  //! Seconds of a pass of this number of rows after a context of this length; 0 if `rows` is below 1.
  double operator()(std::int32_t rows, std::int32_t context) const {
    if (rows < 1) return 0;
    const place r = place_in(rows_, rows), c = place_in(contexts_, context);
    const double* low = seconds_.data() + r.from * contexts_.size();
    const double* high = seconds_.data() + r.to * contexts_.size();
    const double inside =
        between(between(low[c.from], low[c.to], c.share), between(high[c.from], high[c.to], c.share), r.share);
    return inside + r.beyond * between(row_slopes_[c.from], row_slopes_[c.to], c.share) +
           c.beyond * between(context_slopes_[r.from], context_slopes_[r.to], r.share);
  }

  //! Seconds of a pass whose rows belong to n_texts texts, each with a context of this length of its own: each text
  //! after the first adds what its context adds to a pass of one row.
  double of_texts(std::int32_t n_texts, std::int32_t rows, std::int32_t context) const {
    const double seconds = (*this)(rows, context);
    return n_texts > 1 ? seconds + (n_texts - 1) * ((*this)(1, context) - (*this)(1, 0)) : seconds;
  }

  //! The greatest number of rows, `limit` at most, with which a pass of n_texts texts takes no longer than `seconds`,
  //! by of_texts(); 0 if not even a pass of one row is that short.
  //!
  //! Complexity  O(log limit) evaluations; no allocation
  std::int32_t most_rows(double seconds, std::int32_t n_texts, std::int32_t limit, std::int32_t context) const {
    std::int32_t fits = 0, beyond = limit + 1;
    while (beyond - fits > 1) {
      const std::int32_t n = fits + (beyond - fits) / 2;
      (of_texts(n_texts, n, context) <= seconds ? fits : beyond) = n;
    }
    return fits;
  }

  std::span<const std::int32_t> rows() const { return rows_; }
  std::span<const std::int32_t> contexts() const { return contexts_; }
  std::span<const double> seconds() const { return seconds_; }

  friend bool operator==(const cost_curve&, const cost_curve&) = default;

 private:
  // The position of a value on the grid: `share` of the way from grid point `from` to grid point `to`, and how much the
  // value lies `beyond` the last one.
  struct place {
    std::size_t from, to;
    double share, beyond;
  };

  cost_curve(std::vector<std::int32_t> rows, std::vector<std::int32_t> contexts, std::vector<double> seconds)
      : rows_(std::move(rows)), contexts_(std::move(contexts)), seconds_(std::move(seconds)) {
    const std::size_t n_rows = rows_.size(), n_contexts = contexts_.size();
    row_slopes_.assign(n_contexts, 0.0);
    context_slopes_.assign(n_rows, 0.0);
    if (n_rows > 1) {
      for (std::size_t c = 0; c < n_contexts; ++c)
        row_slopes_[c] = slope(rows_, (n_rows - 2) * n_contexts + c, (n_rows - 1) * n_contexts + c);
    }
    if (n_contexts > 1) {
      for (std::size_t r = 0; r < n_rows; ++r)
        context_slopes_[r] = slope(contexts_, (r + 1) * n_contexts - 2, (r + 1) * n_contexts - 1);
    }
    keep_largest(row_slopes_);
    keep_largest(context_slopes_);
  }

  double slope(const std::vector<std::int32_t>& grid, std::size_t from, std::size_t to) const {
    return (seconds_[to] - seconds_[from]) / static_cast<double>(grid.back() - grid[grid.size() - 2]);
  }

  static void keep_largest(std::vector<double>& slopes) {
    for (std::size_t i = 1; i < slopes.size(); ++i)
      slopes[i] = (std::max)(slopes[i], slopes[i - 1]);
  }

  static double between(double from, double to, double share) { return from + share * (to - from); }

  static place place_in(const std::vector<std::int32_t>& grid, std::int32_t value) {
    if (value <= grid.front()) return {0, 0, 0, 0};
    const std::size_t last = grid.size() - 1;
    if (value >= grid[last]) return {last, last, 0, static_cast<double>(value - grid[last])};
    const auto to = static_cast<std::size_t>(std::upper_bound(grid.begin(), grid.end(), value) - grid.begin());
    return {to - 1, to, static_cast<double>(value - grid[to - 1]) / static_cast<double>(grid[to] - grid[to - 1]), 0};
  }

  static void sort_once(std::vector<std::int32_t>& values) {
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
  }

  static std::size_t index_of(const std::vector<std::int32_t>& sorted, std::int32_t value) {
    return static_cast<std::size_t>(std::lower_bound(sorted.begin(), sorted.end(), value) - sorted.begin());
  }

  static double median(std::vector<double>& values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return values.size() % 2 == 1 ? *middle : (*std::max_element(values.begin(), middle) + *middle) / 2;
  }

  std::vector<std::int32_t> rows_;
  std::vector<std::int32_t> contexts_;
  std::vector<double> seconds_;         // [n_rows][n_contexts]
  std::vector<double> row_slopes_;      // [n_contexts] seconds for each row beyond the last grid point
  std::vector<double> context_slopes_;  // [n_rows] seconds for each token of context beyond the last grid point
};

}  // namespace espalier
