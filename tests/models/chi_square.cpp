// SPDX-License-Identifier: BSL-1.0
#include "models/chi_square.hpp"

#include <cmath>

#include "catch.hpp"

namespace {

// Known in closed form: with an even number of degrees of freedom the tail is a sum of Poisson probabilities, with an
// odd one the error function and such a sum.
double exact_tail(double x, int freedom) {
  double term = freedom % 2 == 0 ? std::exp(-x / 2) : std::sqrt(2 * x / M_PI) * std::exp(-x / 2);
  double sum = freedom % 2 == 0 ? 0 : std::erfc(std::sqrt(x / 2));
  for (int k = freedom % 2 == 0 ? 0 : 1; k < freedom; k += 2) {
    if (k > 1) term *= x / k;
    sum += term;
  }
  return sum;
}

}  // namespace

TEST_CASE("the tail of the chi-square distribution is that of the tables and of the closed forms", "[chi_square]") {
  CHECK(chi_square::tail(3.841458820694124, 1) == Approx(0.05).epsilon(1e-12));
  CHECK(chi_square::tail(18.307038053275146, 10) == Approx(0.05).epsilon(1e-12));
  CHECK(chi_square::tail(124.34211340400408, 100) == Approx(0.05).epsilon(1e-12));
  CHECK(chi_square::tail(149.44925277903871, 100) == Approx(0.001).epsilon(1e-12));
  for (const int freedom : {1, 2, 3, 4, 7, 8, 30, 31, 200, 201}) {
    for (const double share : {0.0, 0.1, 0.5, 0.9, 1.0, 1.1, 1.5, 3.0}) {
      const double x = share * freedom;
      INFO(freedom << " degrees of freedom, " << x);
      CHECK(chi_square::tail(x, freedom) == Approx(exact_tail(x, freedom)).epsilon(1e-10));
    }
  }
}

TEST_CASE("cells that expect little are put together, and what cannot come is refused", "[chi_square]") {
  using chi_square::probability;
  CHECK(probability({{50, 60}, {50, 40}}) == Approx(exact_tail(4, 1)));
  CHECK(probability({{50, 60}, {44, 34}, {3, 3}, {2, 2}, {1, 1}}) == Approx(exact_tail(100.0 / 50 + 100.0 / 44, 2)));
  CHECK(probability({{95, 94}, {3, 6}, {2, 0}}) == Approx(exact_tail(1.0 / 95 + 1.0 / 5, 1)));
  CHECK(probability({{100, 100}, {3, 3}}) == 1);
  CHECK(probability({{100, 99}, {0, 1}}) == 0);
  CHECK(probability({{100, 100}, {0, 0}}) == 1);
}
