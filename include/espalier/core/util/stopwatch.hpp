// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <utility>

#include "espalier/config.hpp"

#if ESPALIER_HOSTED
#include <chrono>
#endif

namespace espalier {

#if ESPALIER_HOSTED

//! Measures the seconds of one step after the other.
class stopwatch {
 public:
  //! Seconds since the last call, or since construction.
  double lap() {
    const clock::time_point now = clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point last_ = clock::now();
};

#else

//! Measures the seconds of one step after the other by a clock that the user may give: a function that returns the
//! seconds since any fixed moment. Without one, every time is 0.
class stopwatch {
 public:
  using clock_type = double (*)();
  static clock_type& clock() {
    static clock_type source = nullptr;
    return source;
  }

  double lap() {
    const double now = read();
    return now - std::exchange(last_, now);
  }

 private:
  static double read() { return clock() != nullptr ? clock()() : 0; }
  double last_ = read();
};

#endif

}  // namespace espalier
