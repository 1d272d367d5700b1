// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/statistics.cpp
#pragma once

#include <utility>

#include "espalier/config.hpp"

#if ESPALIER_HOSTED
#include <ctime>
#if !defined(CLOCK_MONOTONIC)
#include <chrono>
#endif
#endif

namespace espalier {

#if ESPALIER_HOSTED

//! A clock that never goes back.
struct monotonic_clock {
  //! Seconds since a fixed moment. On POSIX systems it does without <chrono>, which takes 0.3 s to parse.
  static double now() {
#if defined(CLOCK_MONOTONIC)
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
#else
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
#endif
  }
};

//! A stopwatch, which measures the seconds of one step after the other.
class stopwatch {
 public:
  //! Returns the seconds since the last call, or since construction.
  double lap() {
    const double now = monotonic_clock::now();
    return now - std::exchange(last_, now);
  }

 private:
  double last_ = monotonic_clock::now();
};

#else

//! A stopwatch, which measures the seconds of one step after the other by a clock that the user may give: a function
//! that returns the seconds since any fixed moment. Without a clock, every time is 0.
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
