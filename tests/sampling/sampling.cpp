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

// The sampler's definition, step by step over sorted tokens, in double.
std::vector<double> reference_sampler(const std::vector<float>& logits, sampling_options o) {
  std::vector<float> p32(logits.size());
  softmax(logits, o.temperature, p32, 0);
  std::vector<double> p(p32.begin(), p32.end());
  std::vector<std::size_t> by_rank(p.size());
  std::iota(by_rank.begin(), by_rank.end(), 0U);
  std::stable_sort(by_rank.begin(), by_rank.end(), [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
  const auto keep = [&](std::size_t n) {
    double total = 0;
    for (std::size_t i = 0; i < by_rank.size(); ++i)
      total += i < n ? p[by_rank[i]] : 0.0;
    for (std::size_t i = 0; i < by_rank.size(); ++i)
      p[by_rank[i]] = i < n ? p[by_rank[i]] / total : 0.0;
  };
  if (o.top_k > 0) keep(static_cast<std::size_t>(o.top_k));
  if (o.top_p < 1) {
    std::size_t n = 0;
    double sum = 0;
    while (n < p.size() && sum < static_cast<double>(o.top_p))
      sum += p[by_rank[n++]];
    keep(n);
  }
  if (o.min_p > 0) {
    std::size_t n = 0;
    while (n < p.size() && p[by_rank[n]] >= static_cast<double>(o.min_p) * p[by_rank[0]])
      ++n;
    keep(n);
  }
  return p;
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
  for (float x = 0; x > -87; x -= 0.00037F) {
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(detail::exp_of_nonpositive(x)) - exact) / exact);
  }
  CHECK(worst < 3e-7);
  CHECK(detail::exp_of_nonpositive(0.0F) == 1.0F);
  CHECK(detail::exp_of_nonpositive(-90.0F) == 0.0F);
  CHECK(detail::exp_of_nonpositive(-infinity) == 0.0F);
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

TEST_CASE("the sampler agrees with its definition for every combination of truncations") {
  int cut_something = 0;
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    std::vector<float> logits = random_logits(seed % 3 == 0 ? 5 : 60, seed, 2);
    if (seed % 2 == 0) {
      for (float& x : logits)
        x = std::round(x);  // ties at the cuts
    }
    for (const float temperature : {0.5F, 1.0F, 1.7F}) {
      for (const int k : {0, 1, 3, 4, 17, 1000}) {
        for (const float top_p : {1.0F, 0.99F, 0.84F, 0.5F, 1e-6F}) {
          for (const float min_p : {0.0F, 0.02F, 0.2F, 1.0F}) {
            const sampling_options options{temperature, k, top_p, min_p};
            sampler s(options);
            s.reserve(static_cast<std::int32_t>(logits.size()));
            std::vector<float> out(logits.size());
            s.probabilities(logits, out, 0);
            const std::vector<double> expected = reference_sampler(logits, options);
            bool right = true;
            for (std::size_t t = 0; t < out.size(); ++t) {
              right = right && (out[t] == 0.0F) == (expected[t] == 0.0);
              right = right && std::abs(static_cast<double>(out[t]) - expected[t]) < 1e-6;
              cut_something += out[t] == 0.0F ? 1 : 0;
            }
            INFO("seed " << seed << " T " << temperature << " k " << k << " p " << top_p << " min " << min_p);
            REQUIRE(right);
          }
        }
      }
    }
  }
  CHECK(cut_something > 1000);
}

TEST_CASE("top-p counts the mass that top-k left, before min-p takes its part") {
  // 0.5, 0.3, 0.15, 0.05: of the top 4, 0.84 needs three tokens; min-p drops the fourth only.
  const std::vector<float> logits{std::log(0.5F), std::log(0.3F), std::log(0.15F), std::log(0.05F)};
  sampler s({.temperature = 1, .top_k = 4, .top_p = 0.84F, .min_p = 0.2F});
  std::vector<float> out(4);
  s.probabilities(logits, out, 0);
  CHECK(out[2] > 0.15F);
  CHECK(out[3] == 0.0F);
}

TEST_CASE("ties at a cut go to the lower id") {
  const std::vector<float> logits(10, 1.0F);
  std::vector<float> out(10);
  sampler({.temperature = 1, .top_k = 3}).probabilities(logits, out, 0);
  CHECK(std::count(out.begin(), out.begin() + 3, out[0]) == 3);
  CHECK(std::count(out.begin() + 3, out.end(), 0.0F) == 7);
  sampler({.temperature = 1, .top_p = 0.35F}).probabilities(logits, out, 0);
  CHECK(std::count(out.begin(), out.begin() + 4, 0.25F) == 4);
  sampler({.temperature = 1, .min_p = 1.0F}).probabilities(logits, out, 0);
  CHECK(std::count(out.begin(), out.end(), 0.1F) == 10);
}

TEST_CASE("temperature 0 puts all probability on the argmax") {
  sampler s;
  CHECK(s.is_greedy());
  std::vector<float> out(5, 9.0F);
  s.probabilities(std::vector<float>{1, 7, 7, 2, 0}, out, 0);
  CHECK(out == std::vector<float>{0, 1, 0, 0, 0});
}

TEST_CASE("sampling options out of range are errors that name them") {
  const auto message = [](sampling_options o) { return message_of<option_error>([&] { sampler s(o); }); };
  for (const float bad : {-0.1F, 100.5F, nan_value, infinity})
    CHECK(says(message({.temperature = bad}), "option temperature is ", "between 0 and 100"));
  CHECK(says(message({.top_k = -1}), "option top_k is -1", "between 0 and"));
  for (const float bad : {0.0F, -1.0F, 1.5F, nan_value})
    CHECK(says(message({.top_p = bad}), "option top_p is ", " and 1"));
  for (const float bad : {-0.5F, 1.01F, nan_value})
    CHECK(says(message({.min_p = bad}), "option min_p is ", "between 0 and 1"));
  CHECK(message({.temperature = 100, .top_k = 1 << 30, .top_p = 1e-6F, .min_p = 1}).empty());
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
