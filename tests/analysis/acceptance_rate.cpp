// SPDX-License-Identifier: BSL-1.0
// Acceptance rates against the enumeration of every list of draws and every choice of the verifier, and against the
// vectors.
#include "espalier/analysis/acceptance_rate.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "one_node.hpp"
#include "raises.hpp"
#include "vectors.hpp"

using namespace espalier;
using one_node::list_type;
using one_node::row_type;

namespace {

// The probability that what the verifier emits is among the draws, all outcomes run.
template <class VerifierT>
double enumerated_rate(VerifierT& verifier, const row_type& p, const row_type& q, int k) {
  double rate = 0;
  one_node::for_each_list(q, k, [&](const list_type& list, double probability) {
    const row_type distribution = one_node::output_distribution(verifier, p, q, list);
    for (std::size_t t = 0; t < distribution.size(); ++t) {
      if (std::find(list.begin(), list.end(), static_cast<token_id>(t)) != list.end())
        rate += probability * distribution[t];
    }
  });
  return rate;
}

template <class VerifierT>
double rate(const VerifierT& verifier, const row_type& p, const row_type& q, int k) {
  return acceptance_rate(verifier, std::span<const double>(p), std::span<const double>(q), k);
}

double optimum(const row_type& p, const row_type& q, int k) {
  return optimal_acceptance_rate(std::span<const double>(p), std::span<const double>(q), k);
}

// Calls f(model, k) for models whose lists are few enough to run them all.
template <class FunctionT>
void for_each_case(const FunctionT& f) {
  for (std::uint32_t seed = 0; seed < 4; ++seed) {
    for (const int vocab : {1, 2, 3, 4, 6}) {
      for (const auto& m : one_node::models(vocab, seed)) {
        for (int k = 1; k <= 4; ++k) {
          if (std::pow(vocab, k) > 260) continue;
          INFO(m.name << ", vocabulary " << vocab << ", " << k << " draws, seed " << seed);
          f(m, k);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("acceptance rates equal enumeration") {
  int compared = 0;
  double worst = 0;
  for_each_case([&](const one_node::model& m, int k) {
    const auto check = [&](auto verifier) {
      const double off = std::abs(rate(verifier, m.p, m.q, k) - enumerated_rate(verifier, m.p, m.q, k));
      worst = std::max(worst, off);
      ++compared;
      REQUIRE(off < 1e-10);
    };
    check(target_only());
    check(naive_tree());
    check(spectr());
    check(specinfer());
    if (k == 1) check(naive());
    if (k == 1) check(khisti());
    if (k == 2 && m.p.size() <= 6) check(khisti({.window = 6}));
  });
  std::cout << "acceptance rates: " << compared << " compared with enumeration, at most " << worst << " off\n";
}

TEST_CASE("khisti's acceptance rate is a lower bound") {
  int strict = 0;
  for_each_case([&](const one_node::model& m, int k) {
    for (const int window : {0, 2, 5}) {
      khisti verifier({.window = window});
      const double bound = rate(verifier, m.p, m.q, k);
      const double exact = enumerated_rate(verifier, m.p, m.q, k);
      REQUIRE(bound <= exact + 1e-12);
      strict += bound < exact - 1e-6 ? 1 : 0;
    }
  });
  REQUIRE(strict > 0);
}

TEST_CASE("no verifier accepts more than the optimum") {
  for_each_case([&](const one_node::model& m, int k) {
    const double most = optimum(m.p, m.q, k);
    khisti tournament;
    REQUIRE(rate(target_only(), m.p, m.q, k) <= most + 1e-12);
    REQUIRE(rate(naive_tree(), m.p, m.q, k) <= most + 1e-12);
    REQUIRE(rate(spectr(), m.p, m.q, k) <= most + 1e-12);
    REQUIRE(rate(specinfer(), m.p, m.q, k) <= most + 1e-12);
    REQUIRE(enumerated_rate(tournament, m.p, m.q, k) <= most + 1e-12);
    if (k == 1) REQUIRE(std::abs(rate(naive_tree(), m.p, m.q, k) - most) < 1e-12);
    if (k == 2) REQUIRE(std::abs(rate(khisti({.window = 15}), m.p, m.q, k) - most) < 1e-12);
  });
}

TEST_CASE("the optimum is the least bound of all token sets") {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    for (const auto& m : one_node::models(8, seed)) {
      for (const int k : {1, 2, 3, 7}) {
        double least = 1;
        for (unsigned set = 0; set < 256; ++set) {
          double p = 0, q = 0;
          for (std::size_t t = 0; t < 8; ++t) {
            p += (set >> t & 1U) != 0 ? m.p[t] : 0;
            q += (set >> t & 1U) != 0 ? m.q[t] : 0;
          }
          least = std::min(least, 1 + p - std::pow(q, k));
        }
        REQUIRE(std::abs(optimum(m.p, m.q, k) - least) < 1e-12);
      }
    }
  }
}

TEST_CASE("acceptance rates are those of the vectors") {
  int compared = 0;
  for (const auto& entry : load_vectors("otlp.json")) {
    const auto p = entry["p"].get<row_type>();
    const auto q = entry["q"].get<row_type>();
    const int k = entry["k"];
    INFO(entry["style"] << ", vocabulary " << p.size() << ", " << k << " draws");
    const auto check = [&](const std::string& name, double value) {
      REQUIRE(std::abs(value - entry["acc"][name].get<double>()) < 1e-9);
      ++compared;
    };
    const khisti tournament({.window = entry["khisti_s"].get<int>()});
    check("nss", rate(target_only(), p, q, k));
    check("naive", rate(naive_tree(), p, q, k));
    check("spectr", rate(spectr(), p, q, k));
    check("specinfer", rate(specinfer(), p, q, k));
    check("khisti_lower_bound", rate(tournament, p, q, k));
    if (entry["acc"].contains("khisti_exact")) {
      khisti verifier = tournament;
      const double exact = entry["acc"]["khisti_exact"];
      REQUIRE(rate(tournament, p, q, k) <= exact + 1e-9);
      if (std::pow(p.size(), k) < 300) REQUIRE(std::abs(enumerated_rate(verifier, p, q, k) - exact) < 1e-9);
    }
    REQUIRE(std::abs(optimum(p, q, k) - entry["optimal"].get<double>()) < 1e-9);
    ++compared;
  }
  std::cout << "acceptance rates: " << compared << " compared with the vectors\n";
}

TEST_CASE("SpecInfer's residuals are those of the vectors") {
  int compared = 0;
  for (const auto& entry : load_vectors("otlp.json")) {
    if (entry["specinfer_levels"].is_null()) continue;
    const auto p = entry["p"].get<row_type>();
    const auto q = entry["q"].get<row_type>();
    residual<double> rest{std::span<const double>(p), std::span<const double>(q)};
    for (const auto& level : entry["specinfer_levels"]) {
      if (level.is_null()) break;  // reached with no probability to speak of
      row_type given;
      for (std::size_t t = 0; t < p.size(); ++t)
        given.push_back(rest.at(t));
      REQUIRE(one_node::distance(given, level.get<row_type>()) < 1e-9);
      ++compared;
      rest.take(1);
    }
  }
  REQUIRE(compared > 0);
}

TEST_CASE("acceptance rates say what does not fit") {
  const row_type two{0.5, 0.5}, three{0.2, 0.3, 0.5};
  REQUIRE(says(message_of<input_error>([&] { rate(spectr(), two, three, 2); }), "2 tokens", "3"));
  REQUIRE(says(message_of<input_error>([&] { rate(naive_tree(), two, two, 0); }), "0 draws"));
  REQUIRE(says(message_of<input_error>([&] { optimum(two, two, -1); }), "-1 draws"));
}
