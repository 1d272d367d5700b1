// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace chi_square {

//! Q(a, x), the regularised upper incomplete gamma function, for a > 0 and x >= 0: the part of the gamma distribution
//! of shape a beyond x. A series below a + 1, Lentz's continued fraction above.
inline double upper_gamma(double a, double x) {
  constexpr double epsilon = 1e-16;
  constexpr double tiny = 1e-300;
  if (x <= 0) return 1;
  const double front = std::exp(a * std::log(x) - x - std::lgamma(a));
  if (x < a + 1) {
    double term = 1 / a;
    double sum = term;
    for (double n = a + 1; term > sum * epsilon; ++n)
      sum += term *= x / n;
    return 1 - front * sum;
  }
  double b = x + 1 - a;
  double c = 1 / tiny;
  double d = 1 / b;
  double value = d;
  for (int n = 1; n < 10000; ++n) {
    const double an = n * (a - n);
    b += 2;
    d = an * d + b;
    d = 1 / (std::abs(d) < tiny ? tiny : d);
    c = b + an / c;
    if (std::abs(c) < tiny) c = tiny;
    value *= c * d;
    if (std::abs(c * d - 1) < epsilon) break;
  }
  return front * value;
}

//! The probability that a chi-square variable is at least x.
inline double tail(double x, int freedom) {
  return upper_gamma(freedom / 2.0, x / 2.0);
}

//! Samples of one kind: the number that the distribution expects, and the number that there were.
struct cell {
  double expected = 0;
  double observed = 0;
};

//! The probability of counts at least this far from the distribution, if it holds (Pearson). Cells of small expectation
//! are put together, the smallest first, so that each has at least `least`. 0 if something
//! was counted that cannot occur.
inline double probability(std::vector<cell> cells, double least = 5) {
  std::sort(cells.begin(), cells.end(), [](const cell& a, const cell& b) { return a.expected > b.expected; });
  const auto impossible = [](const cell& c) { return c.expected <= 0 && c.observed > 0; };
  if (std::any_of(cells.begin(), cells.end(), impossible)) return 0;
  while (cells.size() > 1 && cells.back().expected < least) {
    const cell smallest = cells.back();
    cells.pop_back();
    cells.back().expected += smallest.expected;
    cells.back().observed += smallest.observed;
    std::inplace_merge(cells.begin(), cells.end() - 1, cells.end(),
                       [](const cell& a, const cell& b) { return a.expected > b.expected; });
  }
  double statistic = 0;
  for (const cell& c : cells)
    statistic += (c.observed - c.expected) * (c.observed - c.expected) / c.expected;
  return cells.size() > 1 ? tail(statistic, static_cast<int>(cells.size()) - 1) : 1;
}

}  // namespace chi_square
