// SPDX-License-Identifier: BSL-1.0
// Every verifier against exact distributions and scripted runs of an independent implementation.
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/espalier.hpp"
#include "espalier/testing/enumerating_chance.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/testing/script_chance.hpp"
#include "vectors.hpp"

using namespace espalier;

namespace {

using outcome_distribution = std::map<std::pair<node_id, token_id>, double>;

// Rows of the nodes of one tree, for draft and target alike.
struct given_rows {
  std::vector<std::vector<double>> rows;
  bool has(node_id) const { return true; }
  std::span<const double> row(node_id u) const { return rows[static_cast<std::size_t>(u)]; }
};

// Nodes with their children with multiplicity; the numbering is the file's.
struct given_tree {
  explicit given_tree(const nlohmann::json& nodes) : drafted(1) {
    int draws = 0;
    for (const auto& node : nodes)
      draws += static_cast<int>(node["children"].size());
    drafted = tree<>(draws);
    drafted.reset(0);
    // Nodes get numbers by their first draw, here breadth first: `ours` translates the file's.
    ours.assign(nodes.size(), no_node);
    ours[0] = root_node;
    std::vector<std::size_t> queue{0};
    for (std::size_t i = 0; i < queue.size(); ++i) {
      for (const std::size_t child : nodes[queue[i]]["children"].get<std::vector<std::size_t>>()) {
        const bool is_new = ours[child] == no_node;
        ours[child] = drafted.draw(ours[queue[i]], nodes[child]["token"].get<token_id>(), 0);
        if (is_new) queue.push_back(child);
      }
    }
    p.rows.resize(nodes.size());
    q.rows.resize(nodes.size());
    for (std::size_t u = 0; u < nodes.size(); ++u) {
      p.rows[static_cast<std::size_t>(ours[u])] = nodes[u]["p"].get<std::vector<double>>();
      q.rows[static_cast<std::size_t>(ours[u])] = nodes[u]["q"].get<std::vector<double>>();
    }
  }

  tree<> drafted;
  std::vector<node_id> ours;
  given_rows p, q;
};

template <class VerifierT>
outcome_distribution distribution_of(VerifierT verifier, given_tree& t) {
  outcome_distribution distribution;
  enumerating_chance chance;
  do {
    const verdict v = verifier.verify(t.drafted, t.q, t.p, chance);
    distribution[{v.accepted, v.token}] += chance.probability();
  } while (chance.next());
  return distribution;
}

struct counts {
  int distributions = 0;
  int scripts = 0;
};

// The verifier's distribution, its expected block efficiency, and its verdicts on given uniforms. Nothing where the
// entry lacks it.
template <class VerifierT>
void check(const nlohmann::json& entry, const std::string& name, VerifierT verifier, counts& n) {
  given_tree t(entry["nodes"]);
  const tree_view view = t.drafted;
  INFO(name << ", shape " << (entry.contains("shape") ? entry["shape"].dump() : entry["branching"].dump()) << ", "
            << entry["style"]);
  if (entry["laws"].contains(name)) {
    outcome_distribution expected;
    for (const auto& row : entry["laws"][name])
      expected[{t.ours[row[0].get<std::size_t>()], row[1].get<token_id>()}] += row[2].get<double>();
    const outcome_distribution distribution = distribution_of(verifier, t);
    double efficiency = 0;
    for (const auto& [outcome, probability] : distribution) {
      const auto found = expected.find(outcome);
      REQUIRE(std::abs(probability - (found == expected.end() ? 0 : found->second)) < 1e-9);
      efficiency += probability * (view.depth[outcome.first] + 1);
    }
    for (const auto& [outcome, probability] : expected)
      REQUIRE((distribution.count(outcome) == 1 || probability < 1e-9));
    REQUIRE(std::abs(efficiency - entry["block_efficiency"][name].get<double>()) < 1e-9);
    ++n.distributions;
  }
  if (!entry["scripts"].contains(name)) return;
  for (const auto& run : entry["scripts"][name]) {
    const auto uniforms = run["u"].get<std::vector<double>>();
    script_chance chance(uniforms);
    const verdict v = verifier.verify(view, t.q, t.p, chance);
    REQUIRE(v == verdict{t.ours[run["node"].get<std::size_t>()], run["token"].get<token_id>()});
    REQUIRE(chance.used() == uniforms.size());
    ++n.scripts;
  }
}

}  // namespace

TEST_CASE("verifiers of independent draws have the distributions and the verdicts of the vectors") {
  counts n;
  for (const auto& entry : load_vectors("verify.json")) {
    const std::vector<int> shape = entry["shape"];
    check(entry, "nss", target_only(), n);
    check(entry, "naive", naive_tree(), n);
    check(entry, "spectr", spectr(), n);
    check(entry, "specinfer", specinfer(), n);
    check(entry, "khisti", khisti(), n);
    check(entry, "traversal", traversal(), n);
    check(entry, "traversal_dedup", traversal_without_replacement(), n);
    if (shape[0] == 1 || shape[2] == 0) {
      check(entry, "bv", block_verification(), n);
      check(entry, "naive", naive(), n);
    }
  }
  CHECK(n.distributions > 0);
  CHECK(n.scripts > 0);
}

TEST_CASE("verifiers of draws without replacement have the distributions and the verdicts of the vectors") {
  counts n;
  for (const auto& entry : load_vectors("wor.json")) {
    check(entry, "dyspec", residual_walk(), n);
    check(entry, "sequoia", residual_walk(), n);
    check(entry, "traversal_wor", traversal_without_replacement(), n);
  }
  CHECK(n.distributions > 0);
  CHECK(n.scripts > 0);
}
