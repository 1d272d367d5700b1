// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "espalier/core/error.hpp"

namespace espalier::detail {

// Returns the bytes of a file. A folder, which some systems open as a file, cannot be read.
//
// Errors      model_error that names the file
inline std::string whole_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) raise<model_error>(path, " cannot be opened.");
  std::ostringstream bytes;
  if (file.peek() != std::ifstream::traits_type::eof()) bytes << file.rdbuf();  // << fails for an empty file
  if (file.bad() || !bytes) raise<model_error>(path, " cannot be read.");
  return std::move(bytes).str();
}

}  // namespace espalier::detail
