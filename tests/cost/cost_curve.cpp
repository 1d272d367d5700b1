// SPDX-License-Identifier: BSL-1.0
// Curves never decrease, go through samples that do not, and are the nearest such to samples that do.
#include "espalier/cost/cost_curve.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

const std::vector<std::int32_t> many_rows = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256};
const std::vector<std::int32_t> some_contexts = {16, 256, 768};

// Whether the curve decreases anywhere on and beyond its grid.
bool decreases(const cost_curve& curve, std::int32_t most_rows, std::int32_t most_context) {
  for (std::int32_t rows = 0; rows <= most_rows; ++rows) {
    for (std::int32_t context = 0; context <= most_context; context += 24) {
      const double here = curve(rows, context);
      // Sums are rounded: a curve that is flat may waver in the last digits.
      const double slack = 1e-12 * here;
      if (curve(rows + 1, context) < here - slack || curve(rows, context + 24) < here - slack) return true;
    }
  }
  return false;
}

std::vector<cost_sample> noisy_samples(std::uint32_t seed, double noise) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> factor(1 - noise, 1 + noise);
  std::vector<cost_sample> samples;
  for (const std::int32_t rows : many_rows) {
    for (const std::int32_t context : some_contexts)
      samples.push_back({rows, context, factor(random) * (1e-3 + 1e-4 * rows + 1e-7 * rows * context)});
  }
  return samples;
}

}  // namespace

TEST_CASE("a fitted curve never decreases") {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    const cost_curve curve = cost_curve::fit(noisy_samples(seed, seed < 20 ? 0.1 : 0.9));
    INFO("seed " << seed);
    CHECK_FALSE(decreases(curve, 400, 1200));
  }
}

TEST_CASE("a fitted curve goes through samples that do not decrease") {
  const std::vector<cost_sample> samples = noisy_samples(0, 0.0);
  const cost_curve curve = cost_curve::fit(samples);
  for (const cost_sample& s : samples)
    CHECK(curve(s.rows, s.context) == s.seconds);
}

TEST_CASE("a fitted curve is the nearest that does not decrease") {
  // Worked by hand: 3 and 1 pool along the rows, and the other column stays.
  const cost_curve pooled = cost_curve::fit(std::vector<cost_sample>{{1, 0, 3}, {2, 0, 1}, {1, 9, 4}, {2, 9, 5}});
  CHECK(pooled(1, 0) == Approx(2));
  CHECK(pooled(2, 0) == Approx(2));
  CHECK(pooled(1, 9) == Approx(4));
  CHECK(pooled(2, 9) == Approx(5));
  // All four pool: the mean of 4, 3, 2, 1.
  const cost_curve flat = cost_curve::fit(std::vector<cost_sample>{{1, 0, 4}, {1, 9, 3}, {2, 0, 2}, {2, 9, 1}});
  CHECK(flat(1, 0) == Approx(2.5));
  CHECK(flat(2, 9) == Approx(2.5));
  // By the max-min formula over all upper and lower sets. Taking turns without corrections would end at 23/6, 4; 23/6,
  // 13/2; 23/6, 7.
  const cost_curve uneven =
      cost_curve::fit(std::vector<cost_sample>{{1, 0, 4}, {1, 9, 4}, {2, 0, 8}, {2, 9, 5}, {3, 0, 1}, {3, 9, 7}});
  const std::vector<double> nearest = {4, 4, 4.5, 5, 4.5, 7};
  for (std::size_t i = 0; i < nearest.size(); ++i)
    CHECK(uneven.seconds()[i] == Approx(nearest[i]));
}

TEST_CASE("what a fit leaves out points away from every curve that does not decrease") {
  // The law of a projection on a convex cone: (y - x) x = 0, and (y - x) z <= 0 for all z in it.
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    const std::vector<cost_sample> samples = noisy_samples(seed, 0.6);
    const cost_curve fitted = cost_curve::fit(samples);
    const auto left_along = [&](const cost_curve& curve) {
      double sum = 0;
      for (const cost_sample& s : samples)
        sum += (s.seconds - fitted(s.rows, s.context)) * curve(s.rows, s.context);
      return sum;
    };
    CHECK(std::abs(left_along(fitted)) < 1e-9);
    for (std::uint32_t other = 100; other < 120; ++other)
      CHECK(left_along(cost_curve::fit(noisy_samples(other, 0.6))) < 1e-9);
    for (const std::int32_t step : many_rows)
      CHECK(left_along(cost_curve::of_grid({1, step + 1}, {0}, {0, 1})) < 1e-9);
  }
}

TEST_CASE("several samples of one pass count by their median") {
  const cost_curve curve =
      cost_curve::fit(std::vector<cost_sample>{{1, 0, 1}, {1, 0, 900}, {1, 0, 2}, {4, 0, 5}, {4, 0, 6}});
  CHECK(curve(1, 0) == 2);
  CHECK(curve(4, 0) == 5.5);
}

TEST_CASE("between and beyond the grid there are straight lines") {
  const cost_curve curve = cost_curve::of_grid({2, 4, 8}, {10, 30}, {1, 3, 2, 4, 4, 8});
  CHECK(curve(3, 10) == 1.5);
  CHECK(curve(2, 20) == 2);
  CHECK(curve(6, 20) == 4.5);
  CHECK(curve(1, 10) == 1);  // before the first, as at the first
  CHECK(curve(2, 0) == 1);
  CHECK(curve(0, 10) == 0);                        // no pass
  CHECK(curve(10, 10) == 4 + 2 * 0.5);             // the last slope of rows after 10 tokens
  CHECK(curve(10, 30) == 8 + 2 * 1.0);             // and after 30
  CHECK(curve(8, 40) == 8 + 10 * 0.2);             // the last slope of the context at 8 rows
  CHECK(curve(12, 50) == 8 + 4 * 1.0 + 20 * 0.2);  // both
}

TEST_CASE("slopes that fall do not make more cost less") {
  // After 30 tokens further rows seem free, and with 4 rows further tokens.
  const cost_curve curve = cost_curve::of_grid({1, 4}, {0, 30}, {1, 9, 8, 9});
  CHECK_FALSE(decreases(curve, 60, 2000));
  CHECK(curve(6, 0) > curve(4, 0));
}

TEST_CASE("further texts cost the reading of their contexts") {
  const auto curve = cost_curve::of_grid({1, 5}, {0, 100}, {1, 2, 3, 6});
  CHECK(curve.of_texts(1, 5, 100) == curve(5, 100));
  CHECK(curve.of_texts(4, 5, 100) == Approx(6 + 3 * 1));
  CHECK(curve.of_texts(4, 5, 50) == Approx(4.5 + 3 * 0.5));
  CHECK(curve.of_texts(4, 5, 0) == Approx(3));
  CHECK(curve.of_texts(0, 0, 100) == 0);
}

TEST_CASE("one number of rows, one context") {
  const cost_curve one = cost_curve::fit(std::vector<cost_sample>{{4, 100, 0.5}});
  for (const std::int32_t rows : {1, 4, 400}) {
    for (const std::int32_t context : {0, 100, 4000})
      CHECK(one(rows, context) == 0.5);
  }
  const cost_curve by_context = cost_curve::fit(std::vector<cost_sample>{{4, 0, 1}, {4, 10, 2}});
  CHECK(by_context(1, 5) == 1.5);
  CHECK(by_context(9, 20) == 3);
  const cost_curve line = cost_curve::linear(3, 0.5);
  CHECK(line(1, 77) == 3);
  CHECK(line(2, 0) == 3.5);
  CHECK(line(256, 1000) == 3 + 255 * 0.5);
}

TEST_CASE("the most rows that fit a time are found") {
  const cost_curve curve = cost_curve::of_grid({1, 4, 9, 16}, {0, 100}, {1, 2, 1, 2, 3, 5, 10, 12});
  for (const double seconds : {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.7, 9.99, 10.0, 17.0, 1000.0}) {
    for (const std::int32_t context : {0, 30, 100, 300}) {
      for (const std::int32_t n_texts : {1, 3}) {
        for (const std::int32_t limit : {0, 1, 7, 60}) {
          std::int32_t most = 0;
          for (std::int32_t n = 1; n <= limit; ++n)
            most = curve.of_texts(n_texts, n, context) <= seconds ? n : most;
          REQUIRE(curve.most_rows(seconds, n_texts, limit, context) == most);
        }
      }
    }
  }
}

TEST_CASE("looking at a curve does not allocate") {
  const cost_curve curve = cost_curve::fit(noisy_samples(1, 0.3));
  const allocation_count allocations;
  double sum = 0;
  for (std::int32_t rows = 0; rows < 300; ++rows)
    sum += curve(rows, 3 * rows);
  CHECK(allocations.so_far() == 0);
  CHECK(sum > 0);
}

TEST_CASE("what is no measurement is refused") {
  const auto fit_error = [](std::vector<cost_sample> samples) {
    return message_of<input_error>([&] { cost_curve::fit(samples); });
  };
  CHECK(says(fit_error({}), "no pass was measured"));
  CHECK(says(fit_error({{1, 0, 1}, {2, 0, -1}}), "2 rows", "-1 seconds"));
  CHECK(says(fit_error({{1, 0, std::nan("")}}), "nan seconds"));
  CHECK(says(fit_error({{1, 0, std::numeric_limits<double>::infinity()}}), "inf seconds"));
  CHECK(says(fit_error({{0, 0, 1}}), "0 rows"));
  CHECK(says(fit_error({{1, -5, 1}}), "-5 tokens"));
  CHECK(says(fit_error({{1, 0, 1}, {2, 8, 1}}), "1 rows", "after 8 tokens"));

  const auto grid_error = [](std::vector<std::int32_t> rows, std::vector<std::int32_t> contexts,
                             std::vector<double> seconds) {
    return message_of<input_error>(
        [&] { cost_curve::of_grid(std::move(rows), std::move(contexts), std::move(seconds)); });
  };
  CHECK(says(grid_error({}, {0}, {}), "rows"));
  CHECK(says(grid_error({1}, {}, {}), "contexts"));
  CHECK(says(grid_error({1, 1}, {0}, {1, 1}), "rows are not ascending"));
  CHECK(says(grid_error({0, 1}, {0}, {1, 1}), "rows are not ascending numbers from 1 on"));
  CHECK(says(grid_error({1, 2}, {9, 3}, {1, 1, 1, 1}), "contexts are not ascending"));
  CHECK(says(grid_error({1, 2}, {0}, {1}), "1 numbers", "2 numbers of rows"));
  CHECK(says(grid_error({1, 2}, {0}, {2, 1}), "2 rows after 0 tokens", "fewer rows"));
  CHECK(says(grid_error({1}, {0, 7}, {2, 1}), "1 rows after 7 tokens", "shorter context"));
  CHECK(says(grid_error({1}, {0}, {std::nan("")}), "nan"));
  CHECK(message_of<input_error>([] { cost_curve::linear(1, 0); }).empty());
  CHECK(says(message_of<input_error>([] { cost_curve::linear(1, -0.5); }), "fewer rows"));
}
