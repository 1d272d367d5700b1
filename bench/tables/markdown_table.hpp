// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <vector>

#include "interval.hpp"

namespace bench {

//! A table in Markdown under a heading of its own; all columns but the first hold figures.
class markdown_table {
 public:
  markdown_table(const std::string& title, const std::vector<std::string>& columns,
                 const std::string& first = "method") {
    text_ = fmt::format("\n### {}\n\n| {} |", title, first);
    for (const std::string& c : columns)
      text_ += fmt::format(" {} |", c);
    text_ += "\n|---|";
    for (std::size_t i = 0; i < columns.size(); ++i)
      text_ += "--:|";
    text_ += "\n";
  }
  void row(const std::string& name, const std::vector<std::string>& cells) {
    text_ += fmt::format("| {} |", name);
    for (const std::string& c : cells)
      text_ += fmt::format(" {} |", c);
    text_ += "\n";
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

//! A cell with the interval; with the mean alone if there was one sample.
inline std::string in_words(const interval& value, int digits) {
  if (value.degrees < 1) return fmt::format("{:.{}f}", value.mean, digits);
  return fmt::format("{:.{}f} ± {:.{}f}", value.mean, digits, value.half_width, digits);
}

//! A cell for each value.
inline std::vector<std::string> cells(const std::vector<interval>& values, int digits) {
  std::vector<std::string> texts;
  for (const interval& v : values)
    texts.push_back(in_words(v, digits));
  return texts;
}

}  // namespace bench
