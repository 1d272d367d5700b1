// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cost/measure_costs.cpp
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#if __has_include(<unistd.h>)
#include <unistd.h>
#endif
#if !defined(_SC_NPROCESSORS_ONLN)
#include <thread>
#endif

#include "espalier/core/error.hpp"

namespace espalier {

namespace detail {

// Returns the first bytes of a file, 64 KiB at most; empty if it cannot be read.
inline std::string beginning_of(const char* path) {
  std::string bytes;
  if (std::FILE* const file = std::fopen(path, "rb")) {
    bytes.resize(1 << 16);
    bytes.resize(std::fread(bytes.data(), 1, bytes.size(), file));
    std::fclose(file);
  }
  return bytes;
}

// The value of the first "model name" line of a /proc/cpuinfo, with single spaces; empty if there is none.
inline std::string processor_in(std::string_view cpuinfo) {
  while (!cpuinfo.empty()) {
    const std::string_view line = cpuinfo.substr(0, cpuinfo.find('\n'));
    cpuinfo.remove_prefix((std::min)(line.size() + 1, cpuinfo.size()));
    const std::size_t colon = line.find(':');
    if (!line.starts_with("model name") || colon == std::string_view::npos) continue;
    std::string name;
    for (const char c : line.substr(colon + 1)) {
      const bool space = c == ' ' || c == '\t' || c == '\r';
      if (!space) name += c;
      if (space && !name.empty() && name.back() != ' ') name += ' ';
    }
    if (!name.empty() && name.back() == ' ') name.pop_back();
    return name;
  }
  return {};
}

// Returns how many threads the hardware runs at once. On POSIX systems it does without <thread>, which takes 0.6 s to
// parse.
inline int n_hardware_threads() {
#if defined(_SC_NPROCESSORS_ONLN)
  const auto n = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
#else
  const auto n = static_cast<int>(std::thread::hardware_concurrency());
#endif
  return (std::max)(1, n);
}

}  // namespace detail

//! A name of the hardware for which times measured on this machine are valid: the processor, and the number of threads
//! that the models run on, such as "AMD EPYC 7R13, 2 threads". The processor is "unknown processor" if /proc/cpuinfo
//! does not name it.
//!
//! threads     the number of threads; 0: as many as the hardware runs at once
inline std::string hardware_name(int threads = 0) {
  std::string name = detail::processor_in(detail::beginning_of("/proc/cpuinfo"));
  if (name.empty()) name = "unknown processor";
  const int n = threads > 0 ? threads : detail::n_hardware_threads();
  return name + ", " + detail::in_words(n) + (n == 1 ? " thread" : " threads");
}

}  // namespace espalier
