// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace bench {

//! The times of repeated measurements of one thing, in microseconds.
//!
//! Law         median and quartiles are given: one slow repetition changes none of them
class samples {
 public:
  void add(double microseconds) { values_.push_back(microseconds); }
  std::size_t size() const { return values_.size(); }

  double median() const { return at(0.5); }
  double low() const { return at(0.25); }   //!< a quarter of the repetitions took less
  double high() const { return at(0.75); }  //!< a quarter took longer

 private:
  double at(double share) const {
    if (values_.empty()) return std::nan("");
    std::vector<double> sorted = values_;
    std::sort(sorted.begin(), sorted.end());
    const double place = share * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, sorted.size() - 1);
    return sorted[below] + (sorted[above] - sorted[below]) * (place - static_cast<double>(below));
  }

  std::vector<double> values_;
};

}  // namespace bench
