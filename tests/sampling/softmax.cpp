// SPDX-License-Identifier: BSL-1.0
#include "espalier/sampling/softmax.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
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

TEMPLATE_TEST_CASE("a logit that is NaN or plus infinity is an error that names row and token, wherever it stands", "",
                   float, double) {
  for (const std::size_t n : {1U, 5U, 16U, 31U, 64U, 101U, 128U, 150U}) {
    for (std::size_t at = 0; at < n; ++at) {
      for (const float bad : {nan_value, -nan_value, infinity}) {
        for (const bool among_holes : {false, true}) {
          const std::vector<float> finite = random_logits(n, 3, 2);
          std::vector<TestType> logits(finite.begin(), finite.end()), out(n);
          if (among_holes) std::fill(logits.begin(), logits.end(), -std::numeric_limits<TestType>::infinity());
          logits[at] = static_cast<TestType>(bad);
          const std::string token = "the logit of token " + std::to_string(at) + " in row 12 is ";
          const std::span<const TestType> row(logits);
          REQUIRE(says(message_of<numeric_error>([&] { argmax(row, 12); }), token, bad == infinity ? "inf" : "nan"));
          REQUIRE(says(message_of<numeric_error>([&] { softmax(row, 1, out, 12); }), token));
        }
      }
    }
  }
  CHECK(says(message_of<input_error>([] { max_logit(std::span<const TestType>(), 4); }), "row 4", "empty"));
}

TEMPLATE_TEST_CASE("a token at minus infinity has probability 0, and leaves the others as they are without it", "",
                   float, double) {
  constexpr TestType hole = -std::numeric_limits<TestType>::infinity();
  for (const std::size_t n : {2U, 5U, 64U, 101U, 1024U, 3000U}) {
    for (const TestType temperature : {TestType(0.25), TestType(1), TestType(100)}) {
      // One row with holes, and one where these are as low as numbers go.
      const std::vector<float> finite = random_logits(n, static_cast<std::uint32_t>(n), 3);
      std::vector<TestType> holes(finite.begin(), finite.end()), out(n), expected(n);
      std::vector<bool> possible(n);
      for (std::size_t t = 0; t < n; ++t) {
        possible[t] = t == n / 2 || t % 3 == 1;
        if (!possible[t]) holes[t] = hole;
      }
      std::vector<TestType> low = holes;
      std::replace(low.begin(), low.end(), hole, static_cast<TestType>(-1e30));
      softmax(std::span<const TestType>(holes), temperature, out, 0);
      softmax(std::span<const TestType>(low), temperature, expected, 0);
      REQUIRE(out == expected);
      for (std::size_t t = 0; t < n; ++t)
        REQUIRE((out[t] > 0) == possible[t]);
      REQUIRE(argmax(std::span<const TestType>(holes), 0) == argmax(std::span<const TestType>(low), 0));
    }
  }
  // What is possible wins, however unlikely.
  const std::vector<TestType> lowest{hole, std::numeric_limits<TestType>::lowest(), hole};
  std::vector<TestType> out(3);
  CHECK(argmax(std::span<const TestType>(lowest), 0) == 1);
  softmax(std::span<const TestType>(lowest), 1, out, 0);
  CHECK(out == std::vector<TestType>{0, 1, 0});
}

TEMPLATE_TEST_CASE("a row of nothing but minus infinity is an error", "", float, double) {
  for (const std::size_t n : {1U, 63U, 64U, 200U}) {
    const std::vector<TestType> logits(n, -std::numeric_limits<TestType>::infinity());
    std::vector<TestType> out(n);
    const std::span<const TestType> row(logits);
    REQUIRE(says(message_of<numeric_error>([&] { argmax(row, 12); }), "all logits in row 12 are minus infinity"));
    REQUIRE(says(message_of<numeric_error>([&] { softmax(row, 1, out, 12); }), "row 12", "one token at least"));
  }
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
