// SPDX-License-Identifier: BSL-1.0
// Branching probabilities against the enumeration of every choice of the verifier, and against the vectors.
#include "espalier/analysis/branching.hpp"

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

template <class VerifierT>
std::vector<double> branching(const VerifierT& verifier, const row_type& p, const row_type& q, const list_type& list) {
  return branching_probabilities(verifier, std::span<const double>(p), std::span<const double>(q),
                                 std::span<const token_id>(list));
}

// Chance that picks the first of several draws.
template <class ChanceT>
struct first_draw_first {
  ChanceT& chance;
  bool accept(double p, double q, chance_key at) { return chance.accept(p, q, at); }
  template <class WeightsT>
  std::int32_t pick(const WeightsT& weights, chance_key at) {
    return chance.pick(weights, at);
  }
  std::int32_t index(std::int32_t, chance_key) { return 0; }
};

// SpecInfer with its draws tested in their order, as other engines do.
struct specinfer_in_order {
  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) const {
    first_draw_first<ChanceT> ordered{chance};
    return specinfer().verify(tree, draft, target, ordered);
  }
};

}  // namespace

TEST_CASE("branching probabilities equal enumeration") {
  int compared = 0;
  double worst = 0;
  for (std::uint32_t seed = 0; seed < 3; ++seed) {
    for (const int vocab : {1, 2, 3, 5}) {
      for (const auto& m : one_node::models(vocab, seed)) {
        for (int k = 1; k <= 4; ++k) {
          if (std::pow(vocab, k) > 130) continue;
          INFO(m.name << ", vocabulary " << vocab << ", " << k << " draws, seed " << seed);
          one_node::for_each_list(m.q, k, [&](const list_type& list, double) {
            const auto check = [&](auto verifier) {
              const row_type distribution = one_node::output_distribution(verifier, m.p, m.q, list);
              const std::vector<double> formula = branching(verifier, m.p, m.q, list);
              for (std::size_t i = 0; i < list.size(); ++i) {
                worst = std::max(worst, std::abs(formula[i] - distribution[static_cast<std::size_t>(list[i])]));
                ++compared;
              }
              REQUIRE(worst < 1e-10);
            };
            check(target_only());
            check(naive_tree());
            check(spectr());
            check(specinfer());
            check(khisti());
            check(khisti({.window = 2}));
            if (k == 1) check(naive());
          });
        }
      }
    }
  }
  std::cout << "branching probabilities: " << compared << " compared with enumeration, at most " << worst << " off\n";
}

TEST_CASE("branching probabilities and distributions of lists are those of the vectors") {
  int branches = 0, distributions = 0;
  for (const auto& entry : load_vectors("otlp.json")) {
    const auto p = entry["p"].get<row_type>();
    const auto q = entry["q"].get<row_type>();
    for (const auto& given : entry["lists"]) {
      const auto list = given["X"].get<list_type>();
      INFO(entry["style"] << ", vocabulary " << p.size() << ", draws " << given["X"].dump());
      const auto check = [&](const std::string& name, auto verifier) {
        INFO(name);
        if (given["branch"].contains(name)) {
          const std::vector<double> formula = branching(verifier, p, q, list);
          for (std::size_t i = 0; i < list.size(); ++i) {
            REQUIRE(std::abs(formula[i] - given["branch"][name][std::to_string(list[i])].get<double>()) < 1e-9);
            ++branches;
          }
        }
        // Enumeration of eight draws in random order would take all their permutations.
        if (given["cond"].contains(name) && !given["cond"][name].is_null() && list.size() <= 5) {
          REQUIRE(one_node::distance(one_node::output_distribution(verifier, p, q, list),
                                     given["cond"][name].get<row_type>()) < 1e-9);
          ++distributions;
        }
      };
      check("nss", target_only());
      check("naive", naive_tree());
      check("spectr", spectr());
      check("specinfer", specinfer());
      check("khisti", khisti({.window = entry["khisti_s"].get<int>()}));
      if (!given["cond"].contains("specinfer_list_order") || given["cond"]["specinfer_list_order"].is_null()) continue;
      specinfer_in_order verifier;
      REQUIRE(one_node::distance(one_node::output_distribution(verifier, p, q, list),
                                 given["cond"]["specinfer_list_order"].get<row_type>()) < 1e-9);
      ++distributions;
    }
  }
  std::cout << "branching probabilities: " << branches << " and " << distributions
            << " distributions of lists compared with the vectors\n";
  REQUIRE(branches > 0);
  REQUIRE(distributions > 0);
}

TEST_CASE("the winner of Khisti's tournament is that of the vectors") {
  int compared = 0;
  for (const auto& entry : load_vectors("otlp.json")) {
    const auto p = entry["p"].get<row_type>();
    const auto q = entry["q"].get<row_type>();
    for (const auto& given : entry["lists"]) {
      if (!given.contains("khisti_select") || given["khisti_select"].is_null()) continue;
      const auto list = given["X"].get<list_type>();
      // The tournament alone, as the verifier plays it.
      row_type distribution(p.size(), 0.0);
      detail::pair_select<double> stage;
      enumerating_chance chance;
      do {
        std::span<const double> winners = q;
        auto winner = static_cast<std::size_t>(list[0]);
        for (std::size_t i = 1; i < list.size(); ++i) {
          const auto next = static_cast<std::size_t>(list[i]);
          winners = stage.solve(p, winners, q, entry["khisti_s"].get<int>());
          if (next == winner) continue;
          const auto shares = stage.shares(winner, next);
          if (!chance.accept(shares.x, shares.x + shares.y)) winner = next;
        }
        distribution[winner] += chance.probability();
      } while (chance.next());
      for (const auto& [token, probability] : given["khisti_select"].items()) {
        REQUIRE(std::abs(distribution[static_cast<std::size_t>(std::stoi(token))] - probability.get<double>()) < 1e-9);
        ++compared;
      }
    }
  }
  std::cout << "Khisti's winners: " << compared << " compared with the vectors\n";
  REQUIRE(compared > 0);
}

TEST_CASE("branching takes many draws, to a limit") {
  const row_type p{0.4, 0.3, 0.2, 0.1}, q{0.1, 0.2, 0.3, 0.4};
  list_type list;
  for (int i = 0; i < 16; ++i)
    list.push_back(i % 4);
  const std::vector<double> emitted = branching(specinfer(), p, q, list);
  REQUIRE(std::abs(emitted[0] + emitted[1] + emitted[2] + emitted[3] - 1) < 1e-12);
  REQUIRE(emitted[0] == emitted[4]);
  list.push_back(0);
  REQUIRE(says(message_of<input_error>([&] { branching(specinfer(), p, q, list); }), "17 draws", "16"));
  REQUIRE(branching(khisti(), p, q, list).size() == 17);
}

TEST_CASE("branching says what does not fit") {
  const row_type p{0.5, 0.5}, q{1, 0};
  REQUIRE(says(message_of<input_error>([&] { branching(naive_tree(), p, q, {0, 1}); }), "token 1", "no probability"));
  REQUIRE(says(message_of<input_error>([&] { branching(spectr(), p, q, {2}); }), "token 2"));
  REQUIRE(says(message_of<input_error>([&] { branching(khisti(), p, {1}, {0}); }), "2 tokens", "1"));
}
