// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <chrono>
#include <utility>

namespace espalier {

//! Seconds of one station of the round after the other.
class stopwatch {
 public:
  //! Since the last call, or construction.
  double lap() {
    const clock::time_point now = clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point last_ = clock::now();
};

}  // namespace espalier
