// SPDX-License-Identifier: BSL-1.0
#include "espalier/sampling/top_tokens.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

template <class NumberT>
constexpr NumberT infinity = std::numeric_limits<NumberT>::infinity();

template <class NumberT>
struct named_row {
  std::string name;
  std::vector<NumberT> logits;
};

// Rows in every order, with ties everywhere, with tokens of probability 0, and of every magnitude.
template <class NumberT>
std::vector<named_row<NumberT>> rows_of(std::size_t n) {
  std::mt19937 random(static_cast<std::uint32_t>(n));
  std::normal_distribution<double> normal;
  std::vector<named_row<NumberT>> all;
  const auto add = [&](const char* name, const auto& logit) {
    std::vector<NumberT> row(n);
    for (std::size_t i = 0; i < n; ++i)
      row[i] = static_cast<NumberT>(logit(static_cast<double>(i)));
    all.push_back({name, std::move(row)});
  };
  const auto size = static_cast<double>(n);
  constexpr auto minus_infinity = -std::numeric_limits<double>::infinity();
  add("bell", [&](double) { return 2.5 * normal(random); });
  add("like a language model", [&](double) { return random() % 5000 == 0 ? 14 + 2 * normal(random) : normal(random); });
  add("flat", [&](double) { return 1e-3 * normal(random); });
  add("steep", [&](double) { return 60 * normal(random); });
  add("far from 0", [&](double) { return 1000 + normal(random); });
  add("negative", [&](double) { return -500 - std::abs(normal(random)); });
  add("ascending", [&](double i) { return 20 * i / size; });
  add("descending", [&](double i) { return -20 * i / size; });
  add("a saw", [&](double i) { return std::fmod(i, 97) / 5; });
  add("equal", [](double) { return -3.25; });
  add("zeros of both signs", [&](double) { return random() % 2 == 0 ? 0.0 : -0.0; });
  add("three values", [&](double) { return static_cast<double>(random() % 3); });
  add("ties", [&](double) { return std::round(3 * normal(random)) / 2; });
  add("most are impossible", [&](double i) { return random() % 50 == 0 || i == 0 ? normal(random) : minus_infinity; });
  add("some are impossible", [&](double i) { return random() % 50 == 0 && i > 0 ? minus_infinity : normal(random); });
  add("one is possible", [&](double i) { return i == std::floor(size / 3) ? 7.0 : minus_infinity; });
  add("one is far above", [&](double i) { return i == std::floor(size / 2) ? 90.0 : normal(random); });
  add("denormal",
      [&](double i) { return std::fmod(i, 7) * static_cast<double>(std::numeric_limits<NumberT>::denorm_min()); });
  add("huge", [&](double) { return 1e30 * normal(random); });
  add("of both ends", [&](double i) { return std::fmod(i, 2) == 0 ? 3e38 : -3e38; });
  for (const double low : {-130.0, -180.0, -300.0, -1e3, -65504.0, -1e9})
    add("a block of masked tokens first", [&](double i) { return i < size / 2 ? low : normal(random); });
  add("rising by steps", [&](double i) { return std::floor(i / 1024) * 30; });
  return all;
}

// Largest first, ties by lower id, without minus infinity.
template <class NumberT>
std::vector<token_id> sorted_tokens(const std::vector<NumberT>& numbers, NumberT none) {
  std::vector<token_id> order;
  for (std::size_t t = 0; t < numbers.size(); ++t) {
    if (numbers[t] > none) order.push_back(static_cast<token_id>(t));
  }
  std::stable_sort(order.begin(), order.end(), [&](token_id a, token_id b) {
    return numbers[static_cast<std::size_t>(a)] > numbers[static_cast<std::size_t>(b)];
  });
  return order;
}

template <class NumberT>
long double log_sum(const std::vector<NumberT>& logits) {
  const long double best = *std::max_element(logits.begin(), logits.end());
  long double total = 0;
  for (const NumberT x : logits)
    total += std::exp(static_cast<long double>(x) - best);
  return best + std::log(total);
}

constexpr std::size_t lengths[] = {1, 2, 5, 31, 32, 33, 64, 100, 1000, 1023, 1024, 1025, 2048, 2080, 5000, 151936};
const std::vector<std::size_t> few{64, 1024};  // of rows that are long

}  // namespace

TEMPLATE_TEST_CASE("the top tokens of logits are those of a sort, with their log probabilities", "", float, double) {
  // Of the sum; and of a logarithm, which is rounded to the row's numbers.
  constexpr double sum_error = sizeof(TestType) == 4 ? 1e-6 : 1e-12;
  constexpr double rounding = 4 * static_cast<double>(std::numeric_limits<TestType>::epsilon());
  top_tokens<TestType> top;
  for (const std::size_t n : lengths) {
    for (const named_row<TestType>& row : rows_of<TestType>(n)) {
      const std::vector<token_id> expected = sorted_tokens(row.logits, -infinity<TestType>);
      const long double log_total = log_sum(row.logits);
      for (const std::size_t k : n > 10000 ? few : std::vector<std::size_t>{1, 2, 64, 1024, n, n + 1}) {
        INFO(row.name << ", " << n << " tokens, k " << k);
        std::vector<ranked_token<TestType>> out(k);
        const auto found = static_cast<std::size_t>(top.of_logits(row.logits, out, 0));
        REQUIRE(found == std::min(k, expected.size()));
        const long double off = static_cast<long double>(top.log_total()) - log_total;
        REQUIRE(std::abs(off) <= sum_error + 1e-15L * std::abs(log_total));
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < found; ++i) {
          const long double logit = row.logits[static_cast<std::size_t>(expected[i])];
          const long double lowest = std::numeric_limits<TestType>::lowest();
          const long double log_prob = std::clamp(logit - log_total, lowest, 0.0L);
          const long double allowed = sum_error + rounding * std::abs(log_prob) + 1e-15L * std::abs(log_total);
          wrong += out[i].token != expected[i] ? 1U : 0U;
          wrong += std::abs(static_cast<long double>(out[i].log_prob) - log_prob) > allowed ? 1U : 0U;
        }
        REQUIRE(wrong == 0);
      }
    }
  }
}

TEMPLATE_TEST_CASE("the top tokens of probabilities are those of a sort", "", float, double) {
  top_tokens<TestType> top;
  for (const std::size_t n : lengths) {
    for (const named_row<TestType>& from : rows_of<TestType>(n)) {
      std::vector<TestType> row(n);
      for (std::size_t i = 0; i < n; ++i)
        row[i] = from.logits[i] > 0 ? from.logits[i] : TestType{0};
      const std::vector<token_id> expected = sorted_tokens(row, TestType{0});
      for (const std::size_t k : n > 10000 ? few : std::vector<std::size_t>{1, 3, 64, 1024, n, n + 1}) {
        INFO(from.name << ", " << n << " tokens, k " << k);
        std::vector<candidate<TestType>> out(k);
        const auto found = static_cast<std::size_t>(top.of_probabilities(row, out));
        REQUIRE(found == std::min(k, expected.size()));
        bool right = true;
        for (std::size_t i = 0; i < found; ++i) {
          right = right && out[i].token == expected[i];
          right = right && out[i].probability == row[static_cast<std::size_t>(expected[i])];
        }
        REQUIRE(right);
      }
    }
  }
}

TEMPLATE_TEST_CASE("rows whose top tokens are known by thought", "", float, double) {
  top_tokens<TestType> top;
  std::vector<ranked_token<TestType>> out(10);
  for (const std::size_t n : {1U, 33U, 1024U, 5000U}) {
    std::vector<TestType> row(n, TestType{4.5});
    REQUIRE(top.of_logits(row, out, 0) == static_cast<std::int32_t>(std::min<std::size_t>(n, 10)));
    for (std::size_t i = 0; i < std::min<std::size_t>(n, 10); ++i) {
      CHECK(out[i].token == static_cast<token_id>(i));
      CHECK(std::abs(static_cast<double>(out[i].log_prob) + std::log(static_cast<double>(n))) < 1e-6);
    }
    for (const double only : {0.0, -1e30, 3e38, 1e-40}) {
      std::fill(row.begin(), row.end(), -infinity<TestType>);
      row[n / 2] = static_cast<TestType>(only);
      REQUIRE(top.of_logits(row, out, 0) == 1);
      CHECK(out[0].token == static_cast<token_id>(n / 2));
      CHECK(out[0].log_prob == 0);
      CHECK(std::abs(top.log_total() - static_cast<double>(row[n / 2])) <= 1e-38);
    }
    std::vector<candidate<TestType>> none(10);
    std::fill(row.begin(), row.end(), TestType{0});
    CHECK(top.of_probabilities(row, none) == 0);
  }
}

TEMPLATE_TEST_CASE("without room for tokens the row is checked and normalised all the same", "", float, double) {
  top_tokens<TestType> top;
  std::vector<TestType> row{1, 1, 1, 1};
  CHECK(top.of_logits(row, {}, 0) == 0);
  CHECK(std::abs(top.log_total() - 1 - std::log(4.0)) < 1e-6);
  row[2] = std::numeric_limits<TestType>::quiet_NaN();
  CHECK(says(message_of<numeric_error>([&] { top.of_logits(row, {}, 8); }), "token 2 in row 8"));
  CHECK(top.of_probabilities(row, {}) == 0);
  CHECK(top.of_probabilities({}, {}) == 0);
  std::vector<candidate<TestType>> out(3);
  CHECK(top.of_probabilities({}, out) == 0);
}

TEMPLATE_TEST_CASE("a logit that is NaN or plus infinity is an error that names row and token", "", float, double) {
  top_tokens<TestType> top;
  std::vector<ranked_token<TestType>> out(3);
  const TestType nan = std::numeric_limits<TestType>::quiet_NaN();
  for (const std::size_t n : {1U, 5U, 33U, 1024U, 1100U, 4096U}) {
    for (std::size_t at = 0; at < n; at += n / 40 + 1) {
      for (const TestType bad : {nan, -nan, infinity<TestType>}) {
        for (const TestType others : {TestType{1}, -infinity<TestType>, static_cast<TestType>(-3e38)}) {
          std::vector<TestType> row(n, others);
          row[at] = bad;
          const std::string token = "token " + std::to_string(at) + " in row 12";
          REQUIRE(says(message_of<numeric_error>([&] { top.of_logits(row, out, 12); }), token));
        }
      }
    }
    const std::vector<TestType> row(n, -infinity<TestType>);
    REQUIRE(says(message_of<numeric_error>([&] { top.of_logits(row, out, 12); }), "row 12", "minus infinity"));
  }
  CHECK(says(message_of<input_error>([&] { top.of_logits({}, out, 4); }), "row 4", "empty"));
  // The row after an error is as any other.
  const std::vector<TestType> row{0, 2, 1};
  REQUIRE(top.of_logits(row, out, 0) == 3);
  CHECK(out[0].token == 1);
}

TEMPLATE_TEST_CASE("top tokens allocate nothing once there is room", "", float, double) {
  constexpr std::size_t k = 1024;
  top_tokens<TestType> top;
  top.reserve(5000, k);
  std::vector<ranked_token<TestType>> out(k);
  std::vector<candidate<TestType>> probable(k);
  const std::vector<named_row<TestType>> rows = rows_of<TestType>(5000);
  allocation_count count;
  for (const named_row<TestType>& row : rows) {
    for (const std::size_t length : {5000U, 4096U, 1500U, 7U}) {
      const std::span<const TestType> part = std::span(row.logits).first(length);
      if (*std::max_element(part.begin(), part.end()) == -infinity<TestType>) continue;
      top.of_logits(part, out, 0);
      top.of_probabilities(part, probable);
    }
  }
  const std::int64_t allocations = count.so_far();
  REQUIRE(allocations == 0);
}

TEST_CASE("exponentials and logarithms are as exact as they say") {
  double worst = 0;
  for (float x = -86; x < 60; x += 0.00053F) {
    const double exact = std::exp(static_cast<double>(x)) * static_cast<double>(detail::scaled_exp_at_0);
    worst = std::max(worst, std::abs(static_cast<double>(detail::scaled_exp(x)) - exact) / exact);
  }
  CHECK(worst < 2.5e-7);
  CHECK(detail::scaled_exp(0.0F) == detail::scaled_exp_at_0);
  CHECK(detail::scaled_exp(-90.0F) == 0.0F);
  CHECK(detail::scaled_exp(-1e6F) == 0.0F);
  CHECK(detail::scaled_exp(-infinity<float>) == 0.0F);
  CHECK(std::isnan(detail::scaled_exp(infinity<float>)));
  CHECK(std::isnan(detail::scaled_exp(std::numeric_limits<float>::quiet_NaN())));
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> exponent(-300, 300), positive(0, 60);
  double worst_exp = 0, worst_log = 0;
  for (int i = 0; i < 200000; ++i) {
    const double x = positive(random), y = i % 2 == 0 ? std::pow(10.0, exponent(random)) : 1 + x / 60;
    worst_exp = std::max(worst_exp, std::abs(detail::exp_of_minus(x) / std::exp(-x) - 1));
    const double log = std::log(y), ulp = std::nextafter(std::abs(log), infinity<double>) - std::abs(log);
    worst_log = std::max(worst_log, std::abs(detail::log_of(y) - log) / ulp);
  }
  CHECK(worst_exp < 1e-15);
  CHECK(worst_log <= 2);  // both are rounded
  CHECK(detail::exp_of_minus(0.0) == 1);
  CHECK(detail::exp_of_minus(infinity<double>) == 0);
  CHECK(detail::log_of(1.0) == 0);
  CHECK(detail::log_of(2.0) == std::log(2.0));
}
