// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "espalier/core/error.hpp"

namespace bench {

//! Writes a file.
//!
//! Errors      input_error for a file that cannot be written
inline void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << (text.ends_with('\n') ? "" : "\n");
  if (!file.flush()) espalier::raise<espalier::input_error>(path, " cannot be written.");
}

//! Prints a report, and writes it to a file if one is named.
inline void report(const std::string& text, const std::string& path) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  if (!path.empty()) write_file(path, text);
}

//! Writes one line to stderr, over which the next call writes; an empty line clears it. Does nothing unless stderr is a
//! terminal.
inline void progress(const std::string& line) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
  std::fflush(stderr);
}

}  // namespace bench
