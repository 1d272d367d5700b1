// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "svg_page.hpp"

namespace bench {

//! A grid of figures, one for each pair of a row and a column; NaN where there is none.
struct heat_panel {
  std::string title;
  std::string row_name, column_name;
  std::vector<std::string> rows, columns;
  std::vector<std::vector<double>> values;  //!< [rows][columns]
};

//! Draws grids, three beside each other, the higher a figure the stronger its colour, as a self-contained SVG that
//! follows the reader's light or dark theme. All grids share one scale. The highest figure of each has a frame.
inline std::string heat_map(const std::string& title, const std::string& note, const std::vector<heat_panel>& panels) {
  constexpr double cell_width = 52, cell_height = 30, left = 74, above = 66, gap = 34, top = 44;
  constexpr std::size_t columns = 3;
  double least = 1e300, most = -1e300;
  std::size_t widest = 0, tallest = 0;
  for (const heat_panel& panel : panels) {
    widest = std::max(widest, panel.columns.size()), tallest = std::max(tallest, panel.rows.size());
    for (const auto& row : panel.values) {
      for (const double value : row) {
        if (!std::isnan(value)) least = std::min(least, value), most = std::max(most, value);
      }
    }
  }
  const double panel_width = left + static_cast<double>(widest) * cell_width + gap;
  const double panel_height = above + static_cast<double>(tallest) * cell_height + 16;
  const auto beside = static_cast<double>(std::min(columns, panels.size()));
  const double lines = std::ceil(static_cast<double>(panels.size()) / columns);
  const double width = std::max(620.0, beside * panel_width), height = top + lines * panel_height + 34;
  std::string svg = svg_page(width, height, title);
  for (std::size_t i = 0; i < panels.size(); ++i) {
    const heat_panel& panel = panels[i];
    const double x0 = left + static_cast<double>(i % columns) * panel_width;
    const double y0 = top + above + static_cast<double>(i / columns) * panel_height;
    svg += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" font-weight=\"600\">{}</text>\n"
        "<text class=\"soft\" x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"11\">{} down, {} across</text>\n",
        x0, y0 - 40, panel.title, x0, y0 - 25, panel.row_name, panel.column_name);
    double highest = -1e300;
    for (const auto& row : panel.values) {
      for (const double value : row)
        if (!std::isnan(value)) highest = std::max(highest, value);
    }
    for (std::size_t c = 0; c < panel.columns.size(); ++c) {
      svg += fmt::format("<text class=\"soft\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                         x0 + (static_cast<double>(c) + 0.5) * cell_width, y0 - 7, panel.columns[c]);
    }
    for (std::size_t r = 0; r < panel.rows.size(); ++r) {
      const double y = y0 + static_cast<double>(r) * cell_height;
      svg += fmt::format("<text class=\"soft\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", x0 - 8,
                         y + cell_height / 2 + 4, panel.rows[r]);
      for (std::size_t c = 0; c < panel.columns.size(); ++c) {
        const double value = panel.values[r][c];
        if (std::isnan(value)) continue;
        const double share = most > least ? (value - least) / (most - least) : 1;
        const double x = x0 + static_cast<double>(c) * cell_width;
        svg += fmt::format(
            "<rect class=\"bar s0{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" rx=\"2\" "
            "fill-opacity=\"{:.2f}\"/><text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"11\" "
            "text-anchor=\"middle\">{:.2f}</text>\n",
            value == highest ? " mark" : "", x + 1, y + 1, cell_width - 2, cell_height - 2, 0.08 + 0.82 * share,
            x + cell_width / 2, y + cell_height / 2 + 4, value);
      }
    }
  }
  return svg +
         fmt::format("<text class=\"soft\" x=\"18\" y=\"{}\" font-size=\"12\">{}</text>\n</svg>\n", height - 12, note);
}

}  // namespace bench
