// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "interval.hpp"
#include "markdown_table.hpp"
#include "svg_page.hpp"

namespace bench {

//! A line of a panel; the series determines its colour and its name in the legend.
struct plot_line {
  std::size_t series;
  std::vector<interval> values;
};

//! One diagram: lines over the same points.
struct plot_panel {
  std::string title;
  std::string below;  //!< name of the points' axis
  std::vector<std::string> points;
  std::vector<plot_line> lines;
  bool from_zero = true;
};

namespace detail {

// A round number of about a fifth of the range, as the distance between ticks.
inline double step_of(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 5)));
  const double digit = range / 5 / power;
  return power * (digit > 5 ? 10 : digit > 2 ? 5 : digit > 1 ? 2 : 1);
}

inline std::string draw_panel(const plot_panel& panel, const std::vector<std::string>& names, double left, double top,
                              double width, double height) {
  double least = panel.from_zero ? 0 : 1e300, most = panel.from_zero ? 1e-9 : -1e300;
  for (const plot_line& line : panel.lines) {
    for (const interval& v : line.values)
      least = std::min(least, v.mean), most = std::max(most, v.mean);
  }
  const double step = step_of(std::max(most - least, 1e-6));
  const double low = std::floor(least / step) * step, high = std::ceil(most / step) * step;
  const auto y_of = [&](double v) { return top + height - (v - low) / (high - low) * height; };
  const auto x_of = [&](std::size_t i) {
    return left + width * (static_cast<double>(i) + 0.5) / static_cast<double>(panel.points.size());
  };
  std::string svg =
      fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-weight=\"600\">{}</text>\n", left, top - 12, panel.title);
  for (double v = low; v <= high + step / 2; v += step) {
    svg += fmt::format(
        "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" class=\"grid\"/>"
        "<text class=\"soft\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:.4g}</text>\n",
        left, left + width, y_of(v), y_of(v), left - 8, y_of(v) + 4, std::abs(v) < step / 1e3 ? 0 : v);
  }
  double below = top + height + 40;
  for (std::size_t i = 0; i < panel.points.size(); ++i) {
    // A long name goes on in a second line.
    const std::string& name = panel.points[i];
    const std::size_t space = name.size() > 6 ? std::min(name.find(' '), name.size()) : name.size();
    svg += fmt::format("<text class=\"soft\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", x_of(i),
                       top + height + 20, name.substr(0, space));
    if (space == name.size()) continue;
    svg += fmt::format("<text class=\"soft\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", x_of(i),
                       top + height + 35, name.substr(space + 1));
    below = top + height + 54;
  }
  svg += fmt::format("<text class=\"soft\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                     left + width / 2, below, panel.below);
  for (const plot_line& line : panel.lines) {
    std::string path;
    for (std::size_t i = 0; i < line.values.size(); ++i)
      path += fmt::format("{}{:.1f},{:.1f}", i == 0 ? "" : " ", x_of(i), y_of(line.values[i].mean));
    svg += fmt::format("<g class=\"s{}\"><polyline class=\"line\" points=\"{}\"/>", line.series, path);
    for (std::size_t i = 0; i < line.values.size(); ++i) {
      const interval& v = line.values[i];
      svg += fmt::format("<circle class=\"bar\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>{}, {}: {}</title></circle>",
                         x_of(i), y_of(v.mean), names[line.series], panel.points[i], in_words(v, 3));
    }
    svg += "</g>\n";
  }
  return svg;
}

}  // namespace detail

//! Draws panels, two a row, under one legend, as a self-contained SVG that follows the reader's light or dark theme.
//!
//! Pre         at most svg_colours names
inline std::string line_plot(const std::string& title, const std::string& note, const std::vector<std::string>& names,
                             const std::vector<plot_panel>& panels) {
  constexpr double panel_width = 410, panel_height = 240, left = 58, gap = 76, below = 92;
  const bool wide = std::ranges::any_of(names, [](const std::string& name) { return name.size() > 18; });
  const std::size_t columns = wide ? 5 : 6;
  const double top = 46 + 22 * std::ceil(static_cast<double>(names.size()) / static_cast<double>(columns)) + 44;
  const double rows = std::ceil(static_cast<double>(panels.size()) / 2);
  const double width = left + 2 * panel_width + gap + 16, height = top + rows * (panel_height + below) - 6;
  std::string svg = svg_page(width, height, title) + svg_legend(names, 46, columns, wide ? 186 : 152);
  for (std::size_t i = 0; i < panels.size(); ++i) {
    svg += detail::draw_panel(panels[i], names, left + static_cast<double>(i % 2) * (panel_width + gap),
                              top + static_cast<double>(i / 2) * (panel_height + below), panel_width, panel_height);
  }
  return svg +
         fmt::format("<text class=\"soft\" x=\"18\" y=\"{}\" font-size=\"12\">{}</text>\n</svg>\n", height - 12, note);
}

}  // namespace bench
