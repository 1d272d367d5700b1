// SPDX-License-Identifier: BSL-1.0
// What traces say of an action against the library's own figure for each of the trees that were drawn for it.
#include "nde/root_efficiency.hpp"

#include <algorithm>
#include <boost/hana/for_each.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/analysis/block_efficiency.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/registry.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "nde/ot_verifiers.hpp"
#include "nde/root_paths.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

constexpr int samples = 3;

// A pair of models: what follows depends on the last token and the depth.
struct pair_of_models {
  std::size_t vocab;
  double sharpness;  // the larger, the oftener paths coincide
  bool cut;          // whether the target gives some tokens no probability

  std::vector<float> row(std::span<const token_id> path, bool is_target) const {
    std::mt19937_64 random(static_cast<std::uint64_t>(path.back()) * 64 + path.size());
    std::uniform_real_distribution<double> uniform(0, 1);
    std::vector<double> weights(vocab);
    for (std::size_t t = 0; t < vocab; ++t) {
      const double both = uniform(random), target = uniform(random), draft = uniform(random);
      weights[t] = std::exp(sharpness * (2 * both + (is_target ? target : draft)));
      if (is_target && cut && t > 0 && target < 0.3) weights[t] = 0;
    }
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<float> row;
    for (const double w : weights)
      row.push_back(static_cast<float>(w / sum));
    return row;
  }
};

// All trees at a root, and the rows of their nodes.
struct drawn_root {
  nde::root_paths paths{samples};
  std::vector<std::vector<float>> target, draft;

  drawn_root(const pair_of_models& models, std::uint64_t seed) {
    testing::row_drafter drafter(static_cast<std::int32_t>(models.vocab), [&](std::span<const token_id> path) {
      const auto row = models.row(path, false);
      return std::vector<double>(row.begin(), row.end());
    });
    drafter.reserve(samples * nde::root_paths::most_nodes);
    paths.draw(drafter, 1, philox_chance(seed, 0, 0));
    REQUIRE(drafter.passes == nde::root_paths::deepest);
    const tree_view tree = paths.tree();
    for (node_id u = 0; u < tree.n_nodes; ++u) {
      std::vector<token_id> path;
      for (node_id a = u; a != no_node; a = tree.parent[a])
        path.insert(path.begin(), tree.token[a]);
      target.push_back(models.row(path, true));
      draft.push_back(models.row(path, false));
    }
  }

  std::span<const float> target_row(node_id u) const { return target[static_cast<std::size_t>(u)]; }
  std::span<const float> draft_row(node_id u) const { return draft[static_cast<std::size_t>(u)]; }
};

// The tree of one action in one sample, as policy delayed would have grown it.
struct cut_tree {
  struct rows {
    const std::vector<std::vector<float>>* all;
    const std::vector<node_id>* origin;
    bool has(node_id) const { return true; }
    std::span<const float> row(node_id u) const {
      return (*all)[static_cast<std::size_t>((*origin)[static_cast<std::size_t>(u)])];
    }
  };

  tree<> nodes{40};
  std::vector<node_id> origin = std::vector<node_id>(41, root_node);  // of leaves, which need no row, the root
  double draft_rows = 0;                                              // sum over the passes

  cut_tree(const drawn_root& root, int sample, const delayed_options& action) {
    nodes.reset(1);
    std::vector<node_id> ends(1, root_node);
    const auto extend = [&](node_id& end, node_id from, token_id token) {
      origin[static_cast<std::size_t>(end)] = from;
      end = nodes.draw(end, token, 0.0F);
    };
    for (int i = 0; i < action.trunk; ++i) {
      extend(ends[0], root.paths.node(sample, i, 0, 0), root.paths.token(sample, i, 0, 0));
      draft_rows += 1;
    }
    ends.resize(static_cast<std::size_t>(action.paths), ends[0]);
    for (int step = 0; step < action.length; ++step) {
      draft_rows += static_cast<double>(std::set<node_id>(ends.begin(), ends.end()).size());
      for (int path = 0; path < action.paths; ++path) {
        extend(ends[static_cast<std::size_t>(path)], root.paths.node(sample, action.trunk, path, step),
               root.paths.token(sample, action.trunk, path, step));
      }
    }
  }
};

void check(const pair_of_models& models, std::uint64_t seed) {
  const drawn_root root(models, seed);
  const std::vector<nde::ot_verifier> verifiers = nde::all_ot_verifiers();
  nde::root_efficiency efficiency(verifiers, thread_team::shared(2));
  const nde::root_results& results = efficiency.run(
      root.paths, [&](node_id u) { return root.target_row(u); }, [&](node_id u) { return root.draft_row(u); });
  REQUIRE(results.efficiency.size() == verifiers.size() * nde::root_results::n_actions);
  double largest = 0;
  for (std::int32_t number = 0; number < delayed_action::count; ++number) {
    const delayed_options action = delayed_action::at(number);
    const auto i = static_cast<std::size_t>(number);
    double nodes = 0, rows = 0;
    std::vector<cut_tree> trees;
    for (int sample = 0; sample < samples; ++sample) {
      trees.emplace_back(root, sample, action);
      nodes += trees.back().nodes.size() - 1;
      rows += trees.back().draft_rows;
    }
    INFO("action " << action.paths << ", " << action.trunk << ", " << action.length);
    REQUIRE(results.nodes[i] == Approx(nodes / samples).margin(1e-12));
    const int passes = action.trunk + action.length;
    REQUIRE(results.draft_rows[i] == Approx(passes == 0 ? 0 : rows / samples / passes).margin(1e-12));
    boost::hana::for_each(espalier::verifiers, [&](const auto& part) {
      for (std::size_t v = 0; v < verifiers.size(); ++v) {
        if (verifiers[v].name != part.name) continue;
        const auto verifier = part.make();
        if constexpr (requires(std::span<const float> p, std::span<const token_id> l) {
                        branching_probabilities(verifier, p, p, l);
                      }) {
          const double expected = estimated_block_efficiency(verifier, samples, [&](std::int32_t sample) {
            cut_tree& tree = trees[static_cast<std::size_t>(sample)];
            struct drawn {
              tree_view tree;
              cut_tree::rows draft, target;
            };
            return drawn{tree.nodes, {&root.draft, &tree.origin}, {&root.target, &tree.origin}};
          });
          largest = std::max(largest, std::abs(results.efficiency[v * nde::root_results::n_actions + i] - expected));
        }
      }
    });
  }
  CHECK(largest < 1e-9);
}

}  // namespace

TEST_CASE("Traces give the expected block efficiency of every action's trees", "[nde]") {
  REQUIRE(nde::all_ot_verifiers().size() == 5);
  SECTION("paths that often coincide") {
    check({.vocab = 4, .sharpness = 1.5, .cut = false}, 1);
  }
  SECTION("tokens that the target never gives") {
    check({.vocab = 6, .sharpness = 1, .cut = true}, 2);
  }
  SECTION("more tokens than khisti ranks exactly") {
    check({.vocab = 1500, .sharpness = 8, .cut = true}, 3);
  }
}

TEST_CASE("The verifiers of traces are named as in the registry", "[nde]") {
  const auto two = nde::ot_verifiers(nde::all_ot_verifiers(), {"khisti", "specinfer"});
  REQUIRE(two.size() == 2);
  CHECK(two[0].name == "khisti");
  CHECK(two[1].name == "specinfer");
  CHECK(says(message_of<input_error>([] { nde::ot_verifiers(nde::all_ot_verifiers(), {"traversal"}); }),
             "no verifier traversal", "spectr"));
}
