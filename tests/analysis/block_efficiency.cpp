// SPDX-License-Identifier: BSL-1.0
// Expected tokens a round: of given trees against the enumeration of verdicts and against the vectors, and of delayed
// trees against exact values over all of them.
#include "espalier/analysis/block_efficiency.hpp"
#include "espalier/decoder/grow.hpp"

#include <cmath>
#include <cstdint>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/enumerating_chance.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "one_node.hpp"
#include "raises.hpp"
#include "vectors.hpp"

using namespace espalier;
using one_node::row_type;

namespace {

struct given_rows {
  std::vector<row_type> distributions;
  bool has(node_id) const { return true; }
  std::span<const double> row(node_id u) const { return distributions[static_cast<std::size_t>(u)]; }
};

template <class VerifierT>
double enumerated(VerifierT& verifier, tree_view tree, const given_rows& draft, given_rows& target) {
  double mean = 0;
  enumerating_chance chance;
  do {
    const verdict v = verifier.verify(tree, draft, target, chance);
    mean += chance.probability() * (tree.depth[v.accepted] + 1);
  } while (chance.next());
  return mean;
}

// A tree of the vectors, its nodes numbered as there.
struct vector_tree {
  explicit vector_tree(const nlohmann::json& nodes) : drawn(64) {
    drawn.reset(0);
    std::vector<node_id> ours(nodes.size(), root_node);
    for (std::size_t u = 0; u < nodes.size(); ++u) {
      for (const std::size_t child : nodes[u]["children"])
        ours[child] = drawn.draw(ours[u], nodes[child]["token"].get<token_id>(), 0);
    }
    p.distributions.resize(nodes.size());
    q.distributions.resize(nodes.size());
    for (std::size_t u = 0; u < nodes.size(); ++u) {
      p.distributions[static_cast<std::size_t>(ours[u])] = nodes[u]["p"].get<row_type>();
      q.distributions[static_cast<std::size_t>(ours[u])] = nodes[u]["q"].get<row_type>();
    }
  }
  tree<> drawn;
  given_rows p, q;
};

// The target's rows of a tree, where they depend on the last token alone: row 0 at the root, row 1 + t after token t.
given_rows markov_rows(const std::vector<row_type>& distributions, tree_view tree) {
  given_rows rows;
  for (node_id u = 0; u < tree.n_nodes; ++u)
    rows.distributions.push_back(distributions[u == root_node ? 0 : static_cast<std::size_t>(tree.token[u]) + 1]);
  return rows;
}

testing::row_drafter markov_drafter(const std::vector<row_type>& distributions, std::int32_t vocab) {
  return {vocab, [distributions](std::span<const token_id> path) {
            return distributions[path.size() == 1 ? 0 : static_cast<std::size_t>(path.back()) + 1];
          }};
}

}  // namespace

TEST_CASE("the expected block efficiency of a tree equals enumeration") {
  int compared = 0;
  double worst = 0;
  for (std::uint32_t seed = 0; seed < 25; ++seed) {
    for (const int vocab : {2, 3}) {
      // Two or three draws a node, two levels, rows of the troublesome kinds in turn.
      std::mt19937 random(seed);
      const auto kinds = one_node::models(vocab, seed);
      tree<> drawn(12);
      drawn.reset(0);
      given_rows p, q;
      for (node_id u = 0; u < drawn.size(); ++u) {
        const auto& m = kinds[random() % kinds.size()];
        p.distributions.push_back(m.p);
        q.distributions.push_back(m.q);
        const std::int32_t depth = drawn.view().depth[u];
        const auto n = depth == 0 ? 3U : depth == 1 ? static_cast<unsigned>(random() % 3) : 0U;
        for (unsigned i = 0; i < n; ++i) {
          std::discrete_distribution<token_id> token(m.q.begin(), m.q.end());
          drawn.draw(u, token(random), 0);
        }
      }
      const auto check = [&](auto verifier) {
        const double formula = expected_block_efficiency(verifier, drawn, q, p);
        worst = std::max(worst, std::abs(formula - enumerated(verifier, drawn, q, p)));
        ++compared;
        REQUIRE(worst < 1e-10);
      };
      check(target_only());
      check(naive_tree());
      check(spectr());
      check(specinfer());
      check(khisti());
    }
  }
  std::cout << "block efficiency: " << compared << " trees compared with enumeration, at most " << worst << " off\n";
}

TEST_CASE("the expected block efficiency of a tree is that of the vectors") {
  int compared = 0;
  for (const auto& entry : load_vectors("verify.json")) {
    vector_tree t(entry["nodes"]);
    const auto check = [&](const std::string& name, auto verifier) {
      if (!entry["branching_block_efficiency"].contains(name)) return;
      INFO(name << ", shape " << entry["shape"].dump() << ", " << entry["style"]);
      const double tokens = expected_block_efficiency(verifier, t.drawn, t.q, t.p);
      REQUIRE(std::abs(tokens - entry["branching_block_efficiency"][name].get<double>()) < 1e-9);
      REQUIRE(std::abs(tokens - entry["block_efficiency"][name].get<double>()) < 1e-9);
      ++compared;
    };
    check("nss", target_only());
    check("naive", naive_tree());
    check("spectr", spectr());
    check("specinfer", specinfer());
    check("khisti", khisti());
  }
  std::cout << "block efficiency: " << compared << " trees compared with the vectors\n";
  REQUIRE(compared > 0);
}

TEST_CASE("over all delayed trees, the estimate is exact") {
  int compared = 0;
  for (const auto& entry : load_vectors("delayed.json")) {
    const auto target_rows = entry["markov"]["P"].get<std::vector<row_type>>();
    const auto draft_rows = entry["markov"]["Q"].get<std::vector<row_type>>();
    const std::int32_t vocab = entry["markov"]["V"];
    for (const auto& row : entry["rows"]) {
      const std::vector<std::int32_t> shape = row["shape"];
      if (std::pow(vocab, shape[1] + shape[0] * shape[2]) > 2500) continue;
      delayed policy({.paths = shape[0], .trunk = shape[1], .length = shape[2]});
      const auto check = [&](const std::string& name, auto verifier) {
        INFO(name << ", shape " << row["shape"].dump());
        testing::row_drafter drafter = markov_drafter(draft_rows, vocab);
        drafter.reserve(policy.max_nodes());
        tree<> drawn(policy.max_nodes());
        given_rows target;
        double mean = 0;
        enumerating_chance chance;
        do {
          const double tokens = estimated_block_efficiency(verifier, 1, [&](std::int32_t) {
            drawn.reset(0);
            espalier::grow(policy, drawn, drafter, chance);
            target = markov_rows(target_rows, drawn);
            return drawn_tree{drawn.view(), drafter.rows(), target};
          });
          mean += chance.probability() * tokens;
        } while (chance.next());
        REQUIRE(std::abs(mean - row["block_efficiency"][name].get<double>()) < 1e-9);
        ++compared;
      };
      check("nss", target_only());
      check("naive", naive_tree());
      check("spectr", spectr());
      check("specinfer", specinfer());
      check("khisti", khisti());
    }
  }
  std::cout << "block efficiency: " << compared << " shapes of delayed trees compared with the vectors\n";
  REQUIRE(compared > 0);
}

TEST_CASE("the estimate is the mean over its trees") {
  const std::vector<row_type> target_rows{{0.6, 0.4}, {0.3, 0.7}, {0.5, 0.5}};
  const std::vector<row_type> draft_rows{{0.4, 0.6}, {0.5, 0.5}, {0.2, 0.8}};
  testing::row_drafter drafter = markov_drafter(draft_rows, 2);
  delayed policy({.paths = 3, .trunk = 1, .length = 2});
  drafter.reserve(policy.max_nodes());
  tree<> drawn(policy.max_nodes());
  given_rows target;
  const auto draw = [&](std::int32_t i) {
    philox_chance chance(7, 0, static_cast<std::uint32_t>(i));
    drawn.reset(0);
    espalier::grow(policy, drawn, drafter, chance);
    target = markov_rows(target_rows, drawn);
    return drawn_tree{drawn.view(), drafter.rows(), target};
  };
  double sum = 0;
  for (std::int32_t i = 0; i < 4; ++i)
    sum += estimated_block_efficiency(specinfer(), 1, [&](std::int32_t) { return draw(i); });
  REQUIRE(std::abs(estimated_block_efficiency(specinfer(), 4, draw) - sum / 4) < 1e-14);
  REQUIRE(says(message_of<input_error>([&] { estimated_block_efficiency(specinfer(), 0, draw); }), "0 trees"));
}

TEST_CASE("a tree that its rows could not have given is refused") {
  tree<> drawn(1);
  drawn.reset(0);
  drawn.append(root_node, 1, 0);
  given_rows target{{{0.5, 0.5}, {0.5, 0.5}}};
  const given_rows certain{{{1, 0}, {1, 0}}};
  REQUIRE(
      says(message_of<input_error>([&] { expected_block_efficiency(spectr(), drawn, certain, target); }), "token 1"));
  const given_rows wrong{{{0.4, 0.4}, {1, 0}}};
  REQUIRE(says(message_of<numeric_error>([&] { expected_block_efficiency(spectr(), drawn, wrong, target); }), "0.8"));
}
