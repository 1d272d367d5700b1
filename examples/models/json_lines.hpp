// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fstream>
#include <istream>
#include <nlohmann/json.hpp>
#include <string>

#include "espalier/core/error.hpp"

namespace models {

//! Calls take(json, where, line) for each line of a file of JSON lines, counted from 1; empty lines are skipped. json is
//! discarded (is_discarded()) where the line is no JSON; where is "NAME, line 3", for messages.
template <class TakeT>
void read_json_lines(std::istream& file, const std::string& name, const TakeT& take) {
  std::string text;
  for (int line = 1; std::getline(file, text); ++line) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    take(nlohmann::json::parse(text, nullptr, false), name + ", line " + std::to_string(line), line);
  }
}

//! Does so for the file at a path.
//!
//! Errors      espalier::input_error if it cannot be opened
template <class TakeT>
void read_json_lines(const std::string& path, const TakeT& take) {
  std::ifstream file(path, std::ios::binary);
  if (!file) espalier::raise<espalier::input_error>(path, " cannot be opened.");
  read_json_lines(file, path, take);
}

}  // namespace models
