// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <vector>

namespace bench {

//! Number of series that have a colour of their own: .s0, .s1, ...
inline constexpr std::size_t svg_colours = 12;

//! The beginning of a self-contained SVG that follows the reader's light or dark theme: styles, background, title. A
//! fill or stroke of currentColor has the colour of the series whose class the element bears.
inline std::string svg_page(double width, double height, const std::string& title) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" "
      "font-family=\"system-ui, sans-serif\" font-size=\"13\">\n<title>{2}</title>\n"
      "<style>\n"
      ".back {{ fill: #ffffff }} text {{ fill: #1c1f24 }} .soft {{ fill: #5f6772 }}\n"
      ".grid {{ stroke: #dfe3e8 }} .mark {{ stroke: #1c1f24; stroke-width: 1.2 }} .one {{ stroke: #5f6772 }}\n"
      ".bar {{ fill: currentColor }} .line {{ fill: none; stroke: currentColor; stroke-width: 2 }}\n"
      ".s0 {{ color: #5b8dd9 }} .s1 {{ color: #d9a441 }} .s2 {{ color: #7cc08d }} .s3 {{ color: #3f9a5a }}\n"
      ".s4 {{ color: #a06bc4 }} .s5 {{ color: #c79be0 }} .s6 {{ color: #2c5aa0 }} .s7 {{ color: #c2412d }}\n"
      ".s8 {{ color: #6b7684 }} .s9 {{ color: #d46aa0 }} .s10 {{ color: #3aa6a6 }} .s11 {{ color: #8a6a3a }}\n"
      "@media (prefers-color-scheme: dark) {{\n"
      ".back {{ fill: #14171b }} text {{ fill: #e8ebef }} .soft {{ fill: #a2abb6 }}\n"
      ".grid {{ stroke: #31373f }} .mark {{ stroke: #e8ebef }} .one {{ stroke: #a2abb6 }}\n"
      ".s0 {{ color: #4a76bd }} .s6 {{ color: #9cc2ff }} .s7 {{ color: #f0705a }} .s8 {{ color: #a2abb6 }}\n"
      "}}\n"
      "</style>\n"
      "<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n"
      "<text x=\"18\" y=\"28\" font-size=\"17\" font-weight=\"600\">{2}</text>\n",
      width, height, title);
}

//! Returns a page with a note in small type under its title.
inline std::string svg_with_note(std::string page, const std::string& note) {
  const std::string end = "</svg>\n";
  return page.replace(page.rfind(end), end.size(),
                      "<text class=\"soft\" x=\"18\" y=\"42\" font-size=\"11\">" + note + "</text>\n" + end);
}

//! A legend with colours and names, from left to right, `columns` a line; the first line is `y` from the top.
inline std::string svg_legend(const std::vector<std::string>& names, double y, std::size_t columns, double spacing) {
  std::string svg;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const double x = 18 + static_cast<double>(i % columns) * spacing, line = y + static_cast<double>(i / columns) * 22;
    svg += fmt::format(
        "<rect class=\"bar s{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" rx=\"2\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
        i, x, line, x + 17, line + 11, names[i]);
  }
  return svg;
}

}  // namespace bench
