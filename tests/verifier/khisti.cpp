// SPDX-License-Identifier: BSL-1.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/verifier/khisti.hpp"
#include "espalier/verifier/naive_tree.hpp"
#include "one_node.hpp"
#include "raises.hpp"
#include "vectors.hpp"

using namespace espalier;
using one_node::list_type;
using one_node::row_type;

namespace {

// What a stage selects, summed up pair by pair from who gets how much of each.
template <class StageT, class NumberT>
row_type distribution_by_pairs(const StageT& stage, std::span<const NumberT> a, std::span<const NumberT> b) {
  row_type distribution(a.size(), 0.0);
  for (std::size_t x = 0; x < a.size(); ++x) {
    distribution[x] += static_cast<double>(a[x]) * static_cast<double>(b[x]);
    for (std::size_t y = x + 1; y < a.size(); ++y) {
      const double mass =
          static_cast<double>(a[x]) * static_cast<double>(b[y]) + static_cast<double>(a[y]) * static_cast<double>(b[x]);
      const auto shares = stage.shares(x, y);
      if (shares.x < 0 || shares.y < 0)
        FAIL("tokens " << x << " and " << y << " share " << shares.x << " to " << shares.y);
      if (mass == 0) continue;
      distribution[x] += mass * shares.x / (shares.x + shares.y);
      distribution[y] += mass * shares.y / (shares.x + shares.y);
    }
  }
  return distribution;
}

double covered(const row_type& p, std::span<const double> distribution) {
  double sum = 0;
  for (std::size_t t = 0; t < p.size(); ++t)
    sum += std::min(p[t], distribution[t]);
  return sum;
}

// The most of p that any shares of pairs could cover in the window of a stage, by the cut theorem: all subsets are
// tried. The window is that of the exact ranking.
double best_in_window(const row_type& p, const row_type& a, const row_type& b, std::size_t window) {
  std::vector<std::size_t> rank(p.size());
  for (std::size_t i = 0; i < rank.size(); ++i)
    rank[i] = i;
  std::stable_sort(rank.begin(), rank.end(),
                   [&](std::size_t i, std::size_t j) { return p[i] - a[i] * b[i] > p[j] - a[j] * b[j]; });
  const std::size_t n = std::min(window, p.size());
  const auto pair = [&](std::size_t i, std::size_t j) { return a[rank[i]] * b[rank[j]] + a[rank[j]] * b[rank[i]]; };
  double best = 2;
  for (unsigned cut = 0; cut < 1U << n; ++cut) {
    double bound = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const bool wanted = (cut >> i & 1U) != 0;
      bound += wanted ? p[rank[i]] : a[rank[i]] * b[rank[i]];
      for (std::size_t j = n; j < p.size(); ++j)
        bound += wanted ? 0.0 : pair(i, j);
      for (std::size_t j = i + 1; j < n; ++j)
        bound += wanted && (cut >> j & 1U) != 0 ? 0.0 : pair(i, j);
    }
    best = std::min(best, bound);
  }
  return best;
}

double covered_in_window(const row_type& p, const row_type& a, const row_type& b, std::span<const double> distribution,
                         std::size_t window) {
  std::vector<std::size_t> rank(p.size());
  for (std::size_t i = 0; i < rank.size(); ++i)
    rank[i] = i;
  std::stable_sort(rank.begin(), rank.end(),
                   [&](std::size_t i, std::size_t j) { return p[i] - a[i] * b[i] > p[j] - a[j] * b[j]; });
  double sum = 0;
  for (std::size_t i = 0; i < std::min(window, p.size()); ++i)
    sum += std::min(p[rank[i]], distribution[rank[i]]);
  return sum;
}

// The same few probabilities among many tokens of probability 0.
row_type spread_out(const row_type& row, std::size_t vocab) {
  row_type wide(vocab, 0.0);
  for (std::size_t t = 0; t < row.size(); ++t)
    wide[t * 157 % vocab] = row[t];
  return wide;
}

}  // namespace

TEST_CASE("the distributions of Khisti's tournament are those of the vectors") {
  int compared = 0;
  detail::pair_select<double> stage;
  for (const auto& entry : load_vectors("otlp.json")) {
    const auto p = entry["p"].get<row_type>();
    const auto q = entry["q"].get<row_type>();
    std::span<const double> distribution = q;
    for (int i = 1; i < entry["k"].get<int>(); ++i)
      distribution = stage.solve(p, distribution, q, entry["khisti_s"].get<int>());
    INFO(entry["style"] << ", vocabulary " << p.size() << ", " << entry["k"] << " draws, window " << entry["khisti_s"]);
    REQUIRE(one_node::distance(distribution, entry["khisti_r"].get<row_type>()) < 1e-9);
    compared += static_cast<int>(p.size());
  }
  std::cout << "Khisti: " << compared << " numbers compared with the vectors\n";
}

TEMPLATE_TEST_CASE("the distribution of a stage is that of its selection, sorted or rounded", "",
                   (detail::pair_select<double>), (detail::pair_select<double, 2>)) {
  TestType stage;
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    for (const int vocab : {1, 2, 3, 9, 40}) {
      for (const auto& m : one_node::models(vocab, seed)) {
        for (const int window : {0, 1, 5, 15}) {
          INFO(m.name << ", vocabulary " << vocab << ", window " << window);
          row_type before = m.q;
          std::span<const double> distribution = m.q;
          for (int i = 2; i <= 4; ++i) {
            distribution = stage.solve(m.p, distribution, m.q, window);
            REQUIRE(one_node::distance(distribution, distribution_by_pairs<TestType, double>(stage, before, m.q)) <
                    1e-14);
            before.assign(distribution.begin(), distribution.end());
          }
        }
      }
    }
  }
}

TEST_CASE("the distribution of a stage over many tokens is that of its selection, in float") {
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  for (const double spread : {0.3, 2.0, 5.0}) {
    row_type p, q;
    for (int t = 0; t < 2000; ++t) {
      const double logit = spread * normal(random);
      p.push_back(std::exp(logit));
      q.push_back(std::exp(logit + normal(random)));
    }
    p = one_node::scaled(p), q = one_node::scaled(q);
    const std::vector<float> p_row(p.begin(), p.end());
    const std::vector<float> q_row(q.begin(), q.end());
    const std::span<const float> q_span = q_row;
    detail::pair_select<float> stage;
    const std::span<const float> first = stage.solve(p_row, q_span, q_span, 5);
    row_type distribution(first.begin(), first.end());
    row_type expected = distribution_by_pairs(stage, q_span, q_span);
    double distance = 0;
    for (std::size_t t = 0; t < distribution.size(); ++t)
      distance += std::abs(distribution[t] - expected[t]);
    REQUIRE(distance < 1e-6);
    const std::span<const float> second = stage.solve(p_row, first, q_span, 5);
    expected = distribution_by_pairs(stage, first, q_span);
    distance = 0;
    for (std::size_t t = 0; t < distribution.size(); ++t)
      distance += std::abs(static_cast<double>(second[t]) - expected[t]);
    REQUIRE(distance < 1e-6);
  }
}

TEST_CASE("the window covers as much of the target as any shares could") {
  detail::pair_select<double> stage;
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    for (const int vocab : {2, 4, 7, 12}) {
      for (const auto& m : one_node::models(vocab, seed)) {
        for (const int window : {1, 3, 5, 8}) {
          INFO(m.name << ", vocabulary " << vocab << ", window " << window);
          const auto distribution = stage.solve(m.p, m.q, m.q, window);
          const auto size = static_cast<std::size_t>(window);
          REQUIRE(std::abs(covered_in_window(m.p, m.q, m.q, distribution, size) - best_in_window(m.p, m.q, m.q, size)) <
                  1e-13);
        }
      }
    }
  }
}

TEST_CASE("khisti writes the target's distribution, for every list of draws together") {
  for (const int window : {0, 1, 5}) {
    INFO("window " << window);
    khisti verifier({.window = window});
    one_node::require_lossless(verifier, 4, {1, 2, 3, 6}, {1, 2, 3});
  }
}

TEST_CASE("khisti writes the target's distribution where keys are rounded") {
  khisti verifier;
  for (const auto& m : one_node::models(7, 1)) {
    const row_type p = spread_out(m.p, 1100);
    const row_type q = spread_out(m.q, 1100);
    for (const int k : {2, 3}) {
      INFO(m.name << ", " << k << " draws");
      REQUIRE(one_node::bias(verifier, p, q, k) < 1e-12);
    }
  }
}

TEST_CASE("with one draw khisti is naive_tree") {
  khisti verifier;
  naive_tree reference;
  for (const auto& m : one_node::models(6, 3)) {
    for (token_id x = 0; x < 6; ++x) {
      if (m.q[static_cast<std::size_t>(x)] == 0) continue;
      REQUIRE(one_node::distance(one_node::output_distribution(verifier, m.p, m.q, {x}),
                                 one_node::output_distribution(reference, m.p, m.q, {x})) < 1e-15);
    }
  }
}

TEST_CASE("lists that were tampered with bias khisti") {
  const row_type p{0.65, 0.25, 0.1};
  const row_type q{0.2, 0.5, 0.3};
  khisti verifier;
  REQUIRE(one_node::bias(verifier, p, q, 3) < 1e-12);
  REQUIRE(one_node::bias(verifier, p, q, 3, one_node::drop_repeated) > 0.005);
  REQUIRE(one_node::bias(verifier, p, q, 3, [&](list_type& list) { one_node::sort_by(q, list); }) > 0.005);
}

// The figures in docs/algorithms/verifiers.md.
TEST_CASE("rounded ranks cover hardly less of the target than sorted ones, often more") {
  const auto sorted = std::make_unique<detail::pair_select<double, 20000>>();
  const auto rounded = std::make_unique<detail::pair_select<double>>();
  double worst = 0, best = 0;
  for (const double spread : {0.5, 2.0, 3.5, 6.0}) {
    for (const double unlike : {0.3, 0.8, 2.0}) {
      std::mt19937 random(17);
      std::normal_distribution<double> normal;
      row_type p, q;
      for (int t = 0; t < 20000; ++t) {
        const double logit = spread * normal(random);
        p.push_back(std::exp(logit));
        q.push_back(std::exp(logit + unlike * normal(random)));
      }
      p = one_node::scaled(p), q = one_node::scaled(q);
      for (const int k : {2, 4}) {
        std::span<const double> a = q, b = q;
        for (int i = 1; i < k; ++i)
          a = sorted->solve(p, a, q, 5), b = rounded->solve(p, b, q, 5);
        const double gain = covered(p, b) - covered(p, a);
        worst = std::min(worst, gain);
        best = std::max(best, gain);
      }
    }
  }
  std::cout << "Khisti, 20000 tokens: rounded ranks cover between " << worst << " and +" << best
            << " of sorted ones' cover\n";
  REQUIRE(worst > -0.01);
}

TEST_CASE("khisti allocates nothing once warm") {
  std::mt19937 random(1);
  row_type p, q;
  for (int t = 0; t < 5000; ++t) {
    p.push_back(static_cast<double>(random() % 1000));
    q.push_back(static_cast<double>(random() % 1000 + 1));
  }
  p = one_node::scaled(p), q = one_node::scaled(q);
  const tree<> drawn = one_node::tree_of({4, 4, 17, 3, 4000});
  const one_node::rows draft(q);
  one_node::rows target(p);
  khisti verifier;
  verifier.reserve(5, 5000);
  const allocation_count allocations;
  for (std::uint32_t round = 0; round < 20; ++round) {
    philox_chance chance(1, 0, round);
    verifier.verify(drawn, draft, target, chance);
  }
  REQUIRE(allocations.so_far() == 0);
}

TEST_CASE("the window has a range") {
  REQUIRE(says(message_of<option_error>([] { khisti({.window = 16}); }), "window is 16", "0 and 15"));
  REQUIRE(says(message_of<option_error>([] { khisti({.window = -1}); }), "window is -1"));
}
