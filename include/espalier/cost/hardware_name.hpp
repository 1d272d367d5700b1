// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cost/measure_costs.cpp
#pragma once

#include <algorithm>
#include <fstream>
#include <istream>
#include <string>
#include <thread>

#include "espalier/core/error.hpp"

namespace espalier {

namespace detail {

// The value of the first "model name" line of a /proc/cpuinfo, with single spaces; empty if there is none.
inline std::string processor_in(std::istream& cpuinfo) {
  std::string line;
  while (std::getline(cpuinfo, line)) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with("model name") || colon == std::string::npos) continue;
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

}  // namespace detail

//! A name of the hardware for which times measured on this machine are valid: the processor, and the number of threads
//! that the models run on, such as "AMD EPYC 7R13, 2 threads". The processor is "unknown processor" if /proc/cpuinfo
//! does not name it.
//!
//! threads     the number of threads; 0: as many as the hardware runs at once
inline std::string hardware_name(int threads = 0) {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string name = detail::processor_in(cpuinfo);
  if (name.empty()) name = "unknown processor";
  const int n = threads > 0 ? threads : (std::max)(1, static_cast<int>(std::thread::hardware_concurrency()));
  return name + ", " + detail::in_words(n) + (n == 1 ? " thread" : " threads");
}

}  // namespace espalier
