// SPDX-License-Identifier: BSL-1.0
#include "espalier/sampling/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

template <class NumberT>
struct named_row {
  std::string name;
  std::vector<NumberT> logits;
};

// Rows of every kind that a cut must get right.
template <class NumberT>
std::vector<named_row<NumberT>> rows_of(std::size_t n) {
  std::mt19937 random(static_cast<std::uint32_t>(n));
  std::normal_distribution<double> normal;
  const auto make = [&](const auto& logit) {
    std::vector<NumberT> row(n);
    for (std::size_t i = 0; i < n; ++i)
      row[i] = static_cast<NumberT>(logit(i));
    return row;
  };
  std::vector<named_row<NumberT>> all;
  all.push_back({"flat", make([&](std::size_t) { return 0.3 * normal(random); })});
  all.push_back({"bell", make([&](std::size_t) { return 2 * normal(random); })});
  all.push_back({"steep", make([&](std::size_t) { return 12 * normal(random); })});
  all.push_back({"like a language model", make([&](std::size_t) {
                   return random() % (n / 8 + 1) == 0 ? 14 + 2 * normal(random) : 2 * normal(random);
                 })});
  all.push_back({"ties", make([&](std::size_t) { return std::round(1.5 * normal(random)); })});
  all.push_back({"uniform", make([](std::size_t) { return 1.25; })});
  all.push_back({"one-hot", make([=](std::size_t i) { return i == 2 * n / 3 ? 500.0 : -500.0; })});
  all.push_back({"two values", make([&](std::size_t) { return random() % 3 == 0 ? 1.0 : 0.0; })});
  all.push_back(
      {"ascending", make([=](std::size_t i) { return 10.0 * static_cast<double>(i) / static_cast<double>(n); })});
  constexpr double hole = -std::numeric_limits<double>::infinity();
  all.push_back({"a padded vocabulary", make([&](std::size_t i) { return i < (n + 1) / 2 ? normal(random) : hole; })});
  all.push_back({"half is masked", make([&](std::size_t i) { return i % 2 == 0 ? 2 * normal(random) : hole; })});
  all.push_back({"most are impossible",
                 make([&](std::size_t i) { return i == n / 3 || random() % 50 == 0 ? normal(random) : hole; })});
  all.push_back({"one is possible", make([=](std::size_t i) { return i == n / 2 ? 7.0 : hole; })});
  return all;
}

// The sampler's definition, step by step over sorted tokens, in long double. What a token weighs is the exponential
// itself. Rounding may move a cut by mass past a token, but no further than the mass is off: `slack`.
template <class NumberT>
class definition {
 public:
  definition(const std::vector<NumberT>& logits, float temperature) : weight_(logits.size()), order_(logits.size()) {
    const NumberT best = *std::max_element(logits.begin(), logits.end());
    detail::exponentials<NumberT>(logits, best, static_cast<NumberT>(temperature), 0, weight_);
    std::iota(order_.begin(), order_.end(), 0U);
    std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
    sums_.push_back(0);
    for (const std::size_t t : order_)
      sums_.push_back(sums_.back() + static_cast<long double>(weight_[t]));
  }

  // Empty, or what is wrong with these probabilities.
  std::string fault_of(const std::vector<NumberT>& p, const sampling_options& o) const {
    std::size_t k = o.top_k > 0 ? std::min(order_.size(), static_cast<std::size_t>(o.top_k)) : order_.size();
    while (k > 0 && weight_[order_[k - 1]] == 0)
      --k;
    // With weights that are equal, the lower ids come first, whether their logits are equal or not.
    std::vector<std::size_t> order(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(k));
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return weight_[a] > weight_[b] || (weight_[a] == weight_[b] && a < b);
    });
    std::size_t n = 0;
    while (n < k && p[order[n]] > 0)
      ++n;
    const auto positive = static_cast<std::size_t>(std::count_if(p.begin(), p.end(), [](NumberT x) { return x > 0; }));
    if (positive != n) return "what is kept is not what comes first";
    const auto above = static_cast<std::size_t>(std::count_if(
        order.begin(), order.end(), [&](std::size_t t) { return weight_[t] >= static_cast<NumberT>(o.min_p); }));
    std::size_t least = above, most = above;
    if (o.top_p < 1) {
      const long double mass = static_cast<long double>(o.top_p) * sums_[k];
      least = std::min(above, reaching(mass * (1 - slack), k));
      most = std::min(above, reaching(mass * (1 + slack), k));
    }
    if (n < least || n > most)
      return std::to_string(n) + " tokens are kept, not " + std::to_string(least) + " to " + std::to_string(most);
    long double total = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const long double exact = static_cast<long double>(weight_[order[i]]) / sums_[n];
      if (std::abs(static_cast<long double>(p[order[i]]) - exact) > slack * exact)
        return "a probability is off by " +
               std::to_string(static_cast<double>(p[order[i]]) / static_cast<double>(exact));
      total += static_cast<long double>(p[order[i]]);
    }
    return std::abs(total - 1) < slack ? "" : "the sum is off";
  }

 private:
  static constexpr long double slack = sizeof(NumberT) == 4 ? 1e-6L : 1e-12L;

  // How many of the first k it takes to reach this mass.
  std::size_t reaching(long double mass, std::size_t k) const {
    const auto end = sums_.begin() + static_cast<std::ptrdiff_t>(k);
    return static_cast<std::size_t>(std::lower_bound(sums_.begin(), end, mass) - sums_.begin());
  }

  std::vector<NumberT> weight_;
  std::vector<std::size_t> order_;  // by logit
  std::vector<long double> sums_;   // of the first i weights
};

}  // namespace

TEMPLATE_TEST_CASE("the sampler agrees with its definition for every combination of truncations", "", float, double) {
  for (const std::size_t n : {1U, 2U, 5U, 63U, 64U, 65U, 1024U, 4096U, 5001U, 151936U}) {
    const bool large = n > 10000;
    for (const named_row<TestType>& row : rows_of<TestType>(n)) {
      for (const float temperature : large ? std::vector{1.0F} : std::vector{0.5F, 1.0F, 1.7F}) {
        const definition<TestType> expected(row.logits, temperature);
        for (const int k : large ? std::vector{0, 50, 60000} : std::vector{0, 1, 3, 64, 1000, 1 << 30}) {
          for (const float top_p : {1.0F, 0.9999999F, 0.99F, 0.9F, 0.5F, 1e-6F}) {
            for (const float min_p : large ? std::vector{0.0F, 0.02F} : std::vector{0.0F, 0.02F, 0.2F, 1.0F}) {
              const sampling_options options{temperature, k, top_p, min_p};
              sampler<TestType> s(options);
              s.reserve(static_cast<std::int32_t>(n));
              std::vector<TestType> out(n, 9);
              s.probabilities(row.logits, out, 0);
              INFO(row.name << ", " << n << ": T " << temperature << " k " << k << " p " << top_p << " min " << min_p);
              REQUIRE(expected.fault_of(out, options) == "");
            }
          }
        }
      }
    }
  }
}

TEST_CASE("of uniform rows top-p keeps the lowest ids, and no more than it needs") {
  for (const std::size_t n : {1U, 2U, 64U, 65U, 4096U, 151936U}) {
    const std::vector<float> logits(n, -3.0F);
    std::vector<float> out(n);
    for (const float top_p : {0.25F, 0.5F, 0.75F}) {
      sampler({.temperature = 1, .top_p = top_p}).probabilities(logits, out, 0);
      const auto kept = static_cast<std::ptrdiff_t>(std::ceil(top_p * static_cast<float>(n)));
      REQUIRE(
          std::all_of(out.begin(), out.begin() + kept, [&](float p) { return p == 1.0F / static_cast<float>(kept); }));
      REQUIRE(std::all_of(out.begin() + kept, out.end(), [](float p) { return p == 0.0F; }));
    }
  }
}

TEST_CASE("wherever the ties stand, as many are kept, and the lowest ids of them") {
  std::mt19937 random(4);
  for (const std::size_t n : {40U, 64U, 700U, 20000U}) {
    for (const sampling_options& o :
         {sampling_options{.temperature = 1, .top_k = 13}, sampling_options{.temperature = 1, .top_p = 0.625F},
          sampling_options{.temperature = 1, .top_k = 20, .top_p = 0.625F}}) {
      std::size_t kept_first = 0;
      for (int round = 0; round < 20; ++round) {
        // 8 tokens at 0.0625 of the mass each, 16 at half as much: the cut is among these.
        std::vector<float> logits(n, -200.0F), out(n);
        std::vector<std::size_t> ids(n);
        std::iota(ids.begin(), ids.end(), 0U);
        std::shuffle(ids.begin(), ids.end(), random);
        for (std::size_t i = 0; i < 8; ++i)
          logits[ids[i]] = std::log(2.0F);
        for (std::size_t i = 8; i < 24; ++i)
          logits[ids[i]] = 0;
        sampler(o).probabilities(logits, out, 0);
        std::sort(ids.begin() + 8, ids.begin() + 24);
        std::size_t kept = 0;
        while (kept < 24 && out[ids[kept]] > 0)
          ++kept;
        REQUIRE(std::count_if(out.begin(), out.end(), [](float p) { return p > 0; }) ==
                static_cast<std::ptrdiff_t>(kept));
        REQUIRE((kept > 8 && kept < 24));
        for (std::size_t i = 9; i < kept; ++i)
          REQUIRE(out[ids[i]] == out[ids[8]]);
        if (round == 0) kept_first = kept;
        REQUIRE(kept == kept_first);
      }
    }
  }
}

const std::vector<sampling_options> ways_of_sampling{
    {},
    {.temperature = 1},
    {.temperature = 1, .top_k = 1},
    {.temperature = 1, .top_p = 0.5F},
    {.temperature = 1, .min_p = 0.5F},
    {.temperature = 1, .top_k = 40, .top_p = 0.9F, .min_p = 0.01F},
};

TEST_CASE("a logit that is NaN or plus infinity is found by every way of sampling") {
  for (const std::size_t n : {2U, 64U, 101U, 2000U}) {
    for (std::size_t at = 0; at < n; at += n < 200 ? 1 : 111) {
      for (const float bad : {nan_value, -nan_value, infinity}) {
        for (const float others : {1.0F, -infinity}) {
          std::vector<float> logits(n, others), out(n);
          logits[0] = 5;
          logits[at] = bad;
          for (const sampling_options& o : ways_of_sampling) {
            const std::string message = message_of<numeric_error>([&] { sampler(o).probabilities(logits, out, 3); });
            REQUIRE(says(message, "token " + std::to_string(at) + " in row 3"));
          }
        }
      }
    }
  }
  std::vector<float> none;
  CHECK(says(message_of<input_error>([&] { sampler({.temperature = 1, .top_k = 3}).probabilities(none, none, 4); }),
             "row 4"));
}

TEST_CASE("a row of nothing but minus infinity is found by every way of sampling") {
  for (const std::size_t n : {1U, 64U, 101U, 2000U}) {
    const std::vector<float> logits(n, -infinity);
    std::vector<float> out(n);
    for (const sampling_options& o : ways_of_sampling) {
      const auto from = row_origin::after_node(row_origin::model::draft, 1, 9);
      const std::string message = message_of<numeric_error>([&] { sampler(o).probabilities(logits, out, from); });
      REQUIRE(says(message, "all of the draft's logits after node 9 of sequence 1 are minus infinity"));
    }
  }
}

TEST_CASE("top-k with more tokens than are possible gives those that are") {
  for (const std::size_t n : {3U, 64U, 1000U, 5001U}) {
    std::vector<float> logits(n, -infinity), out(n), all(n);
    for (const std::size_t t : {std::size_t{1}, n / 2, n - 1})
      logits[t] = static_cast<float>(t % 3);
    sampler({.temperature = 1}).probabilities(logits, all, 0);
    for (const int k : {3, 4, 50, 999, 1 << 30}) {
      sampler({.temperature = 1, .top_k = k}).probabilities(logits, out, 0);
      for (std::size_t t = 0; t < n; ++t)
        REQUIRE((out[t] > 0) == (logits[t] > -infinity));
      // The sums are taken over rows of other lengths.
      for (std::size_t t = 0; t < n; ++t)
        REQUIRE(std::abs(out[t] - all[t]) < 1e-6F);
    }
    sampler({.temperature = 1, .top_k = 2}).probabilities(logits, out, 0);
    CHECK(std::count_if(out.begin(), out.end(), [](float p) { return p > 0; }) == 2);
  }
}

TEST_CASE("after reserve nothing is allocated") {
  for (const int k : {0, 40, 4000}) {
    for (const float top_p : {1.0F, 0.9F}) {
      for (const named_row<float>& row : rows_of<float>(9000)) {
        sampler s({.temperature = 1, .top_k = k, .top_p = top_p, .min_p = 0.001F});
        s.reserve(9000);
        std::vector<float> out(9000);
        const allocation_count count;
        s.probabilities(row.logits, out, 0);
        REQUIRE(count.so_far() == 0);
      }
    }
  }
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
