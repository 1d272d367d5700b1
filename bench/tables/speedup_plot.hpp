// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "interval.hpp"
#include "svg_page.hpp"

namespace bench {

//! The bars of one method, one bar for each group.
struct bar_series {
  std::string name;
  std::vector<interval> values;
};

//! Draws grouped bars with their intervals as a self-contained SVG that follows the reader's light or dark theme.
//!
//! Pre         at most 8 series; each has a value for each group
inline std::string speedup_plot(const std::string& title, const std::string& note,
                                const std::vector<std::string>& groups, const std::vector<bar_series>& series) {
  constexpr double width = 960, height = 486, left = 48, right = 16, top = 108, bottom = 58;
  double most = 1;
  for (const bar_series& s : series) {
    for (const interval& v : s.values)
      most = std::max(most, v.mean + v.half_width);
  }
  const double step = most > 6 ? 2 : most > 3 ? 1 : 0.5;
  const double limit = std::ceil(most / step) * step;
  const auto y_of = [&](double v) { return height - bottom - v / limit * (height - top - bottom); };
  const double group_width = (width - left - right) / static_cast<double>(groups.size());
  const double bar = std::min(26.0, group_width * 0.84 / static_cast<double>(series.size()));

  std::vector<std::string> names;
  for (const bar_series& one : series)
    names.push_back(one.name);
  std::string svg = svg_page(width, height, title) + svg_legend(names, 46, 4, 200);
  for (double v = 0; v <= limit + 1e-9; v += step) {
    svg += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" class=\"grid\"/>", left, width - right,
                       y_of(v), y_of(v));
    svg += fmt::format("<text class=\"soft\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:g}x</text>\n", left - 8,
                       y_of(v) + 4, v);
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const double middle = left + group_width * (static_cast<double>(g) + 0.5);
    const double first = middle - bar * static_cast<double>(series.size()) / 2;
    for (std::size_t i = 0; i < series.size(); ++i) {
      const interval& v = series[i].values[g];
      const double x0 = first + bar * static_cast<double>(i);
      const double center = x0 + bar / 2 - 1;
      svg += fmt::format(
          "<rect class=\"bar s{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"2\">"
          "<title>{}, {}: {:.2f}x, 95 % interval {:.2f} to {:.2f}</title></rect>",
          i, x0, y_of(v.mean), bar - 2, y_of(0) - y_of(v.mean), groups[g], series[i].name, v.mean,
          v.mean - v.half_width, v.mean + v.half_width);
      svg += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" class=\"mark\"/>", center,
                         y_of(v.mean - v.half_width), y_of(v.mean + v.half_width));
      svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"10\" text-anchor=\"middle\">{:.1f}</text>\n",
                         center, y_of(v.mean + v.half_width) - 4, v.mean);
    }
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\" font-weight=\"{}\">{}</text>\n", middle,
                       height - bottom + 20, g + 1 == groups.size() ? 600 : 400, groups[g]);
  }
  svg += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" class=\"one\" stroke-dasharray=\"4 3\"/>\n",
                     left, width - right, y_of(1), y_of(1));
  svg += fmt::format("<text class=\"soft\" x=\"{}\" y=\"{}\" font-size=\"12\">{}</text>\n</svg>\n", left - 30,
                     height - 14, note);
  return svg;
}

}  // namespace bench
