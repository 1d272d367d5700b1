// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

namespace bench {

//! A mean and the half width of its 95 % interval (Student's t).
struct interval {
  double mean = 0;
  double half_width = 0;
  double degrees = 0;  //!< degrees of freedom
};

//! The 97.5 % quantile of Student's t.
//!
//! Source      Cornish and Fisher's expansion in 1 / degrees; within 1 % from 4 degrees on
inline double student_t(double degrees) {
  if (degrees < 1) return 0;
  if (degrees < 2) return 12.71;
  if (degrees < 3) return 4.303;
  if (degrees < 4) return 3.182;
  constexpr double z = 1.959964;
  const double z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
  return z + (z3 + z) / (4 * degrees) + (5 * z5 + 16 * z3 + 3 * z) / (96 * degrees * degrees) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * degrees * degrees * degrees);
}

//! The interval of the mean over samples that are independent of each other.
inline interval interval_of(const std::vector<double>& samples) {
  const auto n = static_cast<double>(samples.size());
  interval result;
  for (const double x : samples)
    result.mean += x / n;
  if (samples.size() < 2) return result;
  double squares = 0;
  for (const double x : samples)
    squares += (x - result.mean) * (x - result.mean);
  result.degrees = n - 1;
  result.half_width = student_t(result.degrees) * std::sqrt(squares / (n - 1) / n);
  return result;
}

//! The interval of the mean of several groups that count alike.
inline interval mean_of(const std::vector<interval>& groups) {
  const auto n = static_cast<double>(groups.size());
  interval result;
  double variance = 0;
  for (const interval& g : groups) {
    result.mean += g.mean / n;
    result.degrees += g.degrees;
    if (g.degrees >= 1) variance += std::pow(g.half_width / student_t(g.degrees) / n, 2);
  }
  result.half_width = student_t(result.degrees) * std::sqrt(variance);
  return result;
}

//! The interval of the ratio of two sums, by the first order of its error.
//!
//! Shapes      numerators, denominators [samples], in pairs; samples are independent of each other
inline interval ratio_of_sums(const std::vector<double>& numerators, const std::vector<double>& denominators) {
  const double numerator = std::accumulate(numerators.begin(), numerators.end(), 0.0);
  const double denominator = std::accumulate(denominators.begin(), denominators.end(), 0.0);
  std::vector<double> errors;
  for (std::size_t i = 0; i < numerators.size(); ++i)
    errors.push_back(numerators[i] / numerator - denominators[i] / denominator);
  interval result = interval_of(errors);
  result.mean = numerator / denominator;
  result.half_width *= static_cast<double>(errors.size()) * result.mean;
  return result;
}

//! Intervals over the prompts of each domain, and last the interval of the domains' mean.
//!
//! Shapes      n_prompts [domains]; figure(domain, prompt)
template <class FigureT>
std::vector<interval> intervals_by_domain(const std::vector<std::size_t>& n_prompts, const FigureT& figure) {
  std::vector<interval> intervals;
  for (std::size_t d = 0; d < n_prompts.size(); ++d) {
    std::vector<double> samples;
    for (std::size_t p = 0; p < n_prompts[d]; ++p)
      samples.push_back(figure(d, p));
    intervals.push_back(interval_of(samples));
  }
  intervals.push_back(mean_of(intervals));
  return intervals;
}

}  // namespace bench
