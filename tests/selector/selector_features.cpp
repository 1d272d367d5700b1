// SPDX-License-Identifier: BSL-1.0
#include "espalier/selector/selector_features.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "catch.hpp"
#include "espalier/sampling/softmax.hpp"

using namespace espalier;

namespace {

std::vector<float> random_row(std::size_t n, std::uint32_t seed, float spread, double top) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> row(n);
  for (float& x : row)
    x = normal(random);
  softmax(row, 1.0F, row, 0);
  if (top < 1) {  // truncated: most tokens have probability 0
    const float least = *std::max_element(row.begin(), row.end()) * static_cast<float>(1 - top);
    double total = 0;
    for (float& p : row)
      total += p = p < least ? 0.0F : p;
    for (float& p : row)
      p = static_cast<float>(p / total);
  }
  return row;
}

double floored(double p) {
  return std::log(std::max(p, 1e-10));
}

// By the definitions, in double.
template <class RowT>
std::vector<double> defined(const std::vector<float>& p, const RowT& q, const RowT& root) {
  std::vector<double> sums(6, 0.0);
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double a = p[i], b = q[i], c = root[i];
    sums[0] -= a * floored(a);
    sums[1] -= b * floored(b);
    sums[2] -= c * floored(c);
    sums[3] += a * (floored(a) - floored(b));
    sums[4] += b * (floored(b) - floored(a));
    sums[5] += std::abs(a - b);
  }
  return sums;
}

}  // namespace

TEST_CASE("divergences are those of the definitions, whatever the rows' length and kind") {
  for (const std::size_t n : {1U, 2U, 63U, 64U, 65U, 1000U, 1024U, 1025U, 4096U, 151936U}) {
    for (const double top : {1.0, 0.9}) {
      const auto seed = static_cast<std::uint32_t>(n);
      const std::vector<float> p = random_row(n, seed, 3, 1), q = random_row(n, seed + 1, 2, top),
                               root = random_row(n, seed + 2, 4, top);
      INFO(n << " tokens, " << top);
      const auto check = [&](const selector_features& features, const std::vector<double>& expected) {
        for (std::size_t k = 0; k < expected.size(); ++k) {
          INFO(selector_features::scalar_names[k]);
          CHECK(static_cast<double>(features.scalars[k]) == Approx(expected[k]).epsilon(2e-6).margin(2e-6));
        }
      };
      selector_features features;
      features.set_divergences(std::span<const float>(p), std::span<const float>(q), std::span<const float>(root));
      check(features, defined(p, q, root));
      const std::vector<double> q2(q.begin(), q.end()), root2(root.begin(), root.end());
      features.set_divergences(std::span<const float>(p), std::span<const double>(q2), std::span<const double>(root2));
      check(features, defined(p, q2, root2));
    }
  }
}

TEST_CASE("each scalar has its place") {
  selector_features features;
  features.set_text(37, {.temperature = 0.5F, .top_p = 0.9F});
  features.set_seconds(0.25, 2);
  CHECK(features.scalars == std::array<float, 11>{0, 0, 0, 0, 0, 0, 37, 0.5F, 0.9F, 0.25F, 2});
}

TEST_CASE("the target's row before truncation") {
  const std::vector<float> logits{1, 3, 2, 3};
  std::vector<float> row(4), expected(4);
  untruncated_row(logits, 0.5F, row);
  softmax(logits, 0.5F, expected, 0);
  CHECK(row == expected);
  untruncated_row(logits, 0, row);
  CHECK(row == std::vector<float>{0, 1, 0, 0});
}
