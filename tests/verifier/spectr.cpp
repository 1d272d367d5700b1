// SPDX-License-Identifier: BSL-1.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/verifier/naive_tree.hpp"
#include "espalier/verifier/spectr.hpp"
#include "one_node.hpp"
#include "vectors.hpp"

using namespace espalier;
using one_node::list_type;
using one_node::row_type;

namespace {

// 1 - (1 - beta)^k - rho beta, in more digits than the library's.
long double excess(const row_type& p, const row_type& q, int k, long double rho) {
  long double beta = 0;
  for (std::size_t t = 0; t < p.size(); ++t)
    beta += std::min(static_cast<long double>(p[t]) / rho, static_cast<long double>(q[t]));
  return 1 - std::pow(1 - beta, static_cast<long double>(k)) - rho * beta;
}

// Rows as softmax gives them, of a target and a draft that differ by `unlike`.
one_node::model softmax_rows(int vocab, double spread, double unlike, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  row_type p, q;
  for (int t = 0; t < vocab; ++t) {
    const double logit = spread * normal(random);
    p.push_back(std::exp(logit));
    q.push_back(std::exp(logit + unlike * normal(random)));
  }
  return {"softmax", one_node::scaled(p), one_node::scaled(q)};
}

detail::k_seq solve(const row_type& p, const row_type& q, int k) {
  return detail::solve_k_seq(std::span<const double>(p), std::span<const double>(q), k);
}

detail::k_seq solve_in_float(const row_type& p, const row_type& q, int k) {
  const std::vector<float> a(p.begin(), p.end());
  const std::vector<float> b(q.begin(), q.end());
  return detail::solve_k_seq(std::span<const float>(a), std::span<const float>(b), k);
}

// Algorithm 3 with a factor of one's own.
struct spectr_with {
  double rho;
  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) const {
    return detail::walk(tree, [&](node_id u) {
      const auto p = target.row(u);
      if (tree.is_leaf(u)) return static_cast<token_id>(chance.pick(p));
      const auto q = draft.row(u);
      detail::k_seq by;
      by.rho = rho;
      for (std::size_t t = 0; t < p.size(); ++t)
        by.beta += std::min(p[t] / rho, q[t]);
      by.gamma = detail::any_of(by.beta, tree.n_draws) / by.beta;
      for (const node_id child : tree.draws(u)) {
        const auto x = static_cast<std::size_t>(tree.token[child]);
        if (chance.accept(p[x], rho * q[x])) return tree.token[child];
      }
      return static_cast<token_id>(chance.pick(detail::k_seq_residual<double>(p, q, by)));
    });
  }
};

}  // namespace

TEST_CASE("one of many independent events happens as often as logarithms say") {
  for (const double b : {0.0, 1e-300, 1e-17, 1e-9, 0.01, 0.3, 0.5, 0.99, 1 - 1e-12, 1.0}) {
    for (const int k : {1, 2, 3, 7, 64, 1000, 2147483647}) {
      const double expected = b >= 1 ? 1 : -std::expm1(k * std::log1p(-b));
      REQUIRE(std::abs(detail::any_of(b, k) - expected) <= 1e-13 * expected);
    }
  }
  CHECK(detail::any_of(0.5, 0) == 0);
}

TEST_CASE("rho is the smallest valid factor") {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    for (const int vocab : {1, 2, 3, 7, 40, 1500}) {
      for (const auto& m : one_node::models(vocab, seed)) {
        for (const int k : {1, 2, 3, 4, 8, 30}) {
          INFO(m.name << ", vocabulary " << vocab << ", " << k << " draws");
          const detail::k_seq found = solve(m.p, m.q, k);
          REQUIRE(found.rho >= 1);
          REQUIRE(found.rho <= k);
          REQUIRE(excess(m.p, m.q, k, found.rho) <= 1.1e-13L);
          if (found.rho > 1 + 1e-9) REQUIRE(excess(m.p, m.q, k, found.rho - 1e-9) > -1e-15L);
          // The error of float sums: the stated bound on the error of the distribution.
          REQUIRE(excess(m.p, m.q, k, solve_in_float(m.p, m.q, k).rho) <= 1e-6L);
        }
      }
    }
  }
}

TEST_CASE("rho, beta and gamma are those of the vectors") {
  int compared = 0;
  for (const auto& entry : load_vectors("otlp.json")) {
    const auto p = entry["p"].get<row_type>();
    const auto q = entry["q"].get<row_type>();
    const detail::k_seq found = solve(p, q, entry["k"]);
    const auto& expected = entry["spectr"];
    INFO(entry["style"] << ", vocabulary " << p.size() << ", " << entry["k"] << " draws");
    REQUIRE(std::abs(found.rho - expected["rho"].get<double>()) < 1e-9);
    REQUIRE(std::abs(found.beta - expected["beta"].get<double>()) < 1e-9);
    REQUIRE(std::abs(found.gamma - expected["gamma"].get<double>()) < 1e-9);
    REQUIRE(std::abs(found.beta * found.gamma - expected["p_acc"].get<double>()) < 1e-9);
    compared += 4;
    if (expected["residual"].is_null()) continue;
    const detail::k_seq_residual<double> weights(p, q, found);
    const double mass = detail::mass(weights);
    for (std::size_t t = 0; t < p.size(); ++t, ++compared)
      REQUIRE(std::abs(weights[t] / mass - expected["residual"][t].get<double>()) < 1e-9);
  }
  std::cout << "SpecTr: " << compared << " numbers compared with the vectors\n";
}

TEST_CASE("rho takes few passes, whatever the vocabulary") {
  REQUIRE(solve({0.5, 0.5}, {0.5, 0.5}, 4).passes == 1);
  REQUIRE(solve({1, 0}, {0, 1}, 4).passes == 1);
  int most = 0;
  double total = 0;
  int n = 0;
  for (const double spread : {1.0, 3.0, 5.0}) {
    for (const double unlike : {0.3, 1.0, 3.0}) {
      for (const int k : {2, 4}) {
        const auto m = softmax_rows(30000, spread, unlike, 7);
        for (const int passes : {solve(m.p, m.q, k).passes, solve_in_float(m.p, m.q, k).passes}) {
          most = std::max(most, passes);
          total += passes;
          ++n;
        }
      }
    }
  }
  std::cout << "SpecTr, 30000 tokens: rho took " << total / n << " passes on average, at most " << most << "\n";
  REQUIRE(most <= 8);
  REQUIRE(total / n < 5);
}

TEST_CASE("spectr writes the target's distribution, for every list of draws together") {
  spectr verifier;
  one_node::require_lossless(verifier, 5, {1, 2, 3, 5}, {1, 2, 3});
}

TEST_CASE("with one draw spectr is naive_tree") {
  spectr verifier;
  naive_tree reference;
  for (const auto& m : one_node::models(6, 3)) {
    for (token_id x = 0; x < 6; ++x) {
      if (m.q[static_cast<std::size_t>(x)] == 0) continue;
      REQUIRE(one_node::distance(one_node::output_distribution(verifier, m.p, m.q, {x}),
                                 one_node::output_distribution(reference, m.p, m.q, {x})) < 1e-15);
    }
  }
}

TEST_CASE("a factor above rho is lossless, one below is biased") {
  const row_type p{0.65, 0.25, 0.1};
  const row_type q{0.2, 0.5, 0.3};
  const double rho = solve(p, q, 3).rho;
  REQUIRE(rho > 1.5);
  spectr_with above{(rho + 3) / 2};
  REQUIRE(one_node::bias(above, p, q, 3) < 1e-12);
  spectr_with below{1};
  REQUIRE(one_node::bias(below, p, q, 3) > 0.05);
}

TEST_CASE("lists that were tampered with bias spectr") {
  const row_type p{0.65, 0.25, 0.1};
  const row_type q{0.2, 0.5, 0.3};
  spectr verifier;
  REQUIRE(one_node::bias(verifier, p, q, 3) < 1e-12);
  REQUIRE(one_node::bias(verifier, p, q, 3, one_node::drop_repeated) > 0.005);
  REQUIRE(one_node::bias(verifier, p, q, 3, [&](list_type& list) { one_node::sort_by(q, list); }) > 0.005);
}
