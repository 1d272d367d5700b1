// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>
#include <CLI/App.hpp>
#include <CLI/Formatter.hpp>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace models {

inline constexpr std::size_t help_width = 92;

//! Words of a text, wrapped to lines of --help that are indented by `indent`.
inline std::string wrapped(const std::string& text, std::size_t indent) {
  std::istringstream words(text);
  std::string lines, line;
  for (std::string word; words >> word;) {
    if (!line.empty() && indent + line.size() + 1 + word.size() > help_width) {
      lines += std::string(indent, ' ') + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return lines + std::string(indent, ' ') + line + "\n";
}

//! Writes --help in two columns, defaults in brackets.
class help_format : public CLI::Formatter {
 public:
  //! Makes the format. usage: the program and its most important arguments.
  explicit help_format(std::string usage) : usage_(std::move(usage)) {}

  std::string make_usage(const CLI::App*, std::string) const override {
    return fmt::format("\nusage: {}\nDefaults are in brackets.\n\n", usage_);
  }

  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    std::string text = fmt::format("{}\n", group);
    for (const CLI::Option* option : options)
      text += make_option(option, is_positional);
    return text;
  }

  std::string make_footer(const CLI::App* app) const override { return fmt::format("\n{}\n", app->get_footer()); }

  std::string make_option(const CLI::Option* option, bool) const override {
    std::string line = fmt::format("  {} {}", option->get_name(false, true), option->get_type_name());
    std::istringstream description(option->get_description());
    std::string text;
    for (std::string part; std::getline(description, part);) {
      // Entries of a list begin with two spaces; their further lines are indented to below their summary.
      const std::size_t hang = part.compare(0, 2, "  ") == 0 ? entry_indent : 0;
      while (!part.empty()) {
        if (line.size() >= indent) {  // the name is too long to share a line
          text += line + "\n";
          line.clear();
        }
        line.resize(indent, ' ');
        const std::size_t end = line_end(part);
        text += line + part.substr(0, end) + "\n";
        line.clear();
        part.erase(0, end + 1);
        if (!part.empty()) part.insert(0, hang, ' ');
      }
    }
    return text;
  }

 private:
  static constexpr std::size_t indent = 34;
  static constexpr std::size_t entry_indent = 21;

  // The end of the first line of a text: the last space that fits.
  static std::size_t line_end(const std::string& text) {
    if (text.size() <= help_width - indent) return text.size();
    const std::size_t space = text.rfind(' ', help_width - indent);
    return space == std::string::npos || space < entry_indent ? text.size() : space;
  }

  std::string usage_;
};

}  // namespace models
