// SPDX-License-Identifier: BSL-1.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "catch.hpp"
#include "espalier/sampling/lazy_rows.hpp"
#include "espalier/sampling/sampler.hpp"
#include "espalier/sampling/softmax.hpp"
#include "espalier/sampling/top_k.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(std::size_t n, std::uint32_t seed, float spread) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> out(n);
  for (float& x : out)
    x = normal(random);
  return out;
}

std::vector<long double> reference_softmax(const std::vector<float>& logits, float temperature) {
  std::vector<long double> out(logits.size());
  const long double best = *std::max_element(logits.begin(), logits.end());
  long double total = 0;
  for (std::size_t i = 0; i < out.size(); ++i)
    total += out[i] = std::exp((static_cast<long double>(logits[i]) - best) / temperature);
  for (long double& p : out)
    p /= total;
  return out;
}

}  // namespace

TEST_CASE("softmax agrees with long double") {
  for (const std::size_t n : {1U, 2U, 15U, 16U, 17U, 33U, 1000U, 1024U, 4096U, 5001U}) {
    for (const float temperature : {0.1F, 0.7F, 1.0F, 2.5F}) {
      const std::vector<float> logits = random_logits(n, static_cast<std::uint32_t>(n), 3);
      std::vector<float> out(n);
      softmax(logits, temperature, out, 0);
      const std::vector<long double> expected = reference_softmax(logits, temperature);
      const float best = *std::max_element(logits.begin(), logits.end());
      bool close = true;
      for (std::size_t i = 0; i < n; ++i) {
        // Scaling the logit rounds it to float: 1e-6, and as much again for each 10 that it lies below the largest.
        const long double below = (static_cast<long double>(best) - static_cast<long double>(logits[i])) / temperature;
        if (below > 80) {
          close = close && out[i] < 1e-34F;
        } else {
          close = close &&
                  std::abs(static_cast<long double>(out[i]) - expected[i]) <= 1e-6L * (1 + below / 10) * expected[i];
        }
      }
      REQUIRE(close);
      REQUIRE(std::abs(std::accumulate(out.begin(), out.end(), 0.0) - 1) < 1e-6);
    }
  }
}

TEST_CASE("the exponential is as exact as it says") {
  double worst = 0;
  for (float x = 0; x < 126; x += 0.00053F) {
    const double exact = std::exp2(-static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(detail::exp2_of_minus(x)) - exact) / exact);
  }
  CHECK(worst < 2e-7);
  CHECK(detail::exp2_of_minus(0.0F) == 1.0F);
  CHECK(detail::exp2_of_minus(-0.0F) == 1.0F);
  CHECK(detail::exp2_of_minus(127.0F) == 0.0F);
  CHECK(detail::exp2_of_minus(1e30F) == 0.0F);
  CHECK(detail::exp2_of_minus(infinity) == 0.0F);
}

TEST_CASE("equal logits have equal probabilities, wherever they stand") {
  for (const std::size_t n : {7U, 64U, 100U, 1500U}) {
    std::vector<float> logits = random_logits(n, 5, 3), out(n);
    for (std::size_t i = 0; i < n; i += 3)
      logits[i] = -1.2345678F;
    logits[n / 2] = 9;
    softmax(logits, 0.7F, out, 0);
    for (std::size_t i = 0; i < n; i += 3)
      REQUIRE((i == n / 2 || out[i] == out[0]));
  }
}

TEST_CASE("softmax works in place and at the ends of the float range") {
  std::vector<float> row{3.0e38F, -3.0e38F, 3.0e38F, 0.0F};
  softmax(row, 1.0F, row, 0);
  CHECK(row == std::vector<float>{0.5F, 0.0F, 0.5F, 0.0F});
  for (const float temperature : {1e-30F, 1e-38F, 1e-45F, 100.0F}) {
    std::vector<float> out{1.0F, 2.0F, 2.0F, -5.0F};
    softmax(out, temperature, out, 0);
    if (temperature < 1) {
      CHECK(out == std::vector<float>{0.0F, 0.5F, 0.5F, 0.0F});
    } else {
      CHECK(std::abs(out[0] - 0.25F) < 0.02F);
    }
  }
}

TEST_CASE("a logit that is not finite is an error that names row and token, wherever it stands") {
  for (const std::size_t n : {1U, 5U, 16U, 31U, 64U, 101U, 128U, 150U}) {
    for (std::size_t at = 0; at < n; ++at) {
      for (const float bad : {nan_value, infinity, -infinity}) {
        std::vector<float> logits = random_logits(n, 3, 2);
        logits[at] = bad;
        const std::string token = "token " + std::to_string(at) + " in row 12";
        std::vector<float> out(n);
        REQUIRE(says(message_of<numeric_error>([&] { argmax(logits, 12); }), token));
        REQUIRE(says(message_of<numeric_error>([&] { softmax(logits, 1.0F, out, 12); }), token));
      }
    }
  }
  CHECK(says(message_of<input_error>([] { max_logit(std::span<const float>(), 4); }), "row 4", "empty"));
}

TEST_CASE("argmax takes the first of the largest") {
  for (const std::size_t n : {1U, 7U, 16U, 64U, 100U, 300U}) {
    for (std::uint32_t seed = 0; seed < 30; ++seed) {
      std::vector<float> logits = random_logits(n, seed, 1);
      for (float& x : logits)
        x = std::floor(x);  // ties
      const auto first = std::max_element(logits.begin(), logits.end()) - logits.begin();
      REQUIRE(argmax(logits, 0) == first);
    }
  }
  CHECK(argmax(std::vector<float>{-0.0F, 0.0F}, 0) == 0);
}

TEMPLATE_TEST_CASE("top-k agrees with a stable sort", "", float, double) {
  std::mt19937 random(1);
  for (const std::size_t n : {1U, 2U, 63U, 64U, 65U, 200U, 1000U}) {
    for (const std::size_t k : {1U, 2U, 3U, 10U, 64U, 65U, 1500U}) {
      for (const unsigned levels : {1U, 2U, 5U, 100000U}) {
        std::vector<TestType> row(n);
        for (TestType& p : row)
          p = static_cast<TestType>(random() % levels);  // ties; zeros are frequent with few levels
        std::vector<token_id> expected;
        for (std::size_t t = 0; t < n; ++t) {
          if (row[t] > 0) expected.push_back(static_cast<token_id>(t));
        }
        std::stable_sort(expected.begin(), expected.end(), [&](token_id a, token_id b) {
          return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
        });
        expected.resize(std::min(k, expected.size()));
        std::vector<candidate<TestType>> out(k);
        const auto found = static_cast<std::size_t>(top_k(std::span<const TestType>(row), std::span(out)));
        REQUIRE(found == expected.size());
        bool right = true;
        for (std::size_t i = 0; i < found; ++i) {
          right = right && out[i].token == expected[i];
          right = right && out[i].probability == row[static_cast<std::size_t>(expected[i])];
        }
        REQUIRE(right);
      }
    }
  }
  std::vector<candidate<TestType>> none;
  CHECK(top_k(std::span<const TestType>(std::vector<TestType>{1, 2}), std::span(none)) == 0);
  CHECK(top_k(std::span<const TestType>(), std::span(none)) == 0);
}

TEST_CASE("lazy rows are made for the nodes that are visited, once each") {
  const std::vector<float> logits{0, 1, 2, nan_value, 0, 0, 5, 5, 1};
  const std::vector<std::int32_t> row_of{0, 2, 1};
  lazy_rows rows({.temperature = 1});
  rows.reserve(3, 3);
  rows.open({logits.data(), 3, 3}, row_of);
  CHECK(rows.argmax(0) == 2);
  CHECK(rows.argmax(1) == 0);
  const std::span<const float> first = rows.row(0);
  CHECK(std::abs(static_cast<double>(first[2]) - std::exp(2.0) / (1 + std::exp(1.0) + std::exp(2.0))) < 1e-6);
  CHECK(rows.row(1)[0] == rows.row(1)[1]);
  CHECK(rows.row(0).data() == first.data());
  CHECK(says(message_of<numeric_error>([&] { rows.row(2); }), "token 0 in row 1"));
  CHECK(says(message_of<numeric_error>([&] { rows.argmax(2); }), "token 0 in row 1"));
  // A new round forgets the old rows.
  const std::vector<float> other{9, 0, 0};
  const std::vector<std::int32_t> root_only{0};
  rows.open({other.data(), 1, 3}, root_only);
  CHECK(rows.row(0)[0] > 0.99F);
}
