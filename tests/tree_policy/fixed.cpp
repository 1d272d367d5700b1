// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/fixed.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "tree_policy/grow_tree.hpp"

using namespace espalier;

namespace {

// Breadth-first growth written out naively: what fixed and chain must give.
struct naive_node {
  token_id token;
  int parent;
  int depth;
};

std::vector<naive_node> naive_fixed(const testing::row_drafter::row_function& row_of, int depth, int breadth,
                                    std::size_t limit) {
  std::vector<naive_node> nodes{{0, -1, 0}};
  for (std::size_t u = 0; u < nodes.size(); ++u) {
    if (nodes[u].depth == depth) break;
    std::vector<token_id> path;
    for (int a = static_cast<int>(u); a >= 0; a = nodes[static_cast<std::size_t>(a)].parent)
      path.insert(path.begin(), nodes[static_cast<std::size_t>(a)].token);
    const std::vector<double> row = row_of(path);
    std::vector<token_id> best;
    for (std::size_t t = 0; t < row.size(); ++t) {
      if (row[t] > 0) best.push_back(static_cast<token_id>(t));
    }
    std::stable_sort(best.begin(), best.end(), [&](token_id a, token_id b) {
      return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
    });
    for (int i = 0; i < breadth && i < static_cast<int>(best.size()) && nodes.size() < limit + 1; ++i)
      nodes.push_back({best[static_cast<std::size_t>(i)], static_cast<int>(u), nodes[u].depth + 1});
  }
  return nodes;
}

void check_equal(tree_view view, const std::vector<naive_node>& expected) {
  REQUIRE(view.n_nodes == static_cast<std::int32_t>(expected.size()));
  for (node_id u = 1; u < view.n_nodes; ++u) {
    const naive_node& e = expected[static_cast<std::size_t>(u)];
    REQUIRE(view.token[u] == e.token);
    REQUIRE(view.parent[u] == e.parent);
    REQUIRE(view.depth[u] == e.depth);
  }
}

// An irregular row of the path with zeros and ties, over 6 tokens; some rows have one token only.
std::vector<double> path_rows(std::span<const token_id> path) {
  std::uint32_t seed = 17;
  for (const token_id t : path)
    seed = seed * 31 + static_cast<std::uint32_t>(t) + 1;
  std::mt19937 random(seed);
  std::vector<double> row(6);
  double total = 0;
  for (double& p : row)
    total += p = static_cast<double>(random() % 4);
  if (total == 0) total = row[random() % 6] = 1;
  for (double& p : row)
    p /= total;
  return row;
}

}  // namespace

TEST_CASE("fixed trees equal a naive construction, for every limit") {
  testing::row_drafter drafter(6, path_rows);
  for (const int depth : {1, 2, 3, 5}) {
    for (const int breadth : {1, 2, 3, 7}) {
      for (const int budget : {2, 3, 10, 64}) {
        fixed policy({.depth = depth, .breadth = breadth, .budget = budget});
        CHECK(policy.max_nodes() == budget);
        for (const int limit : {0, 1, 2, 9, 100}) {
          drafter.passes = 0;
          check_equal(grow(policy, drafter, limit),
                      naive_fixed(path_rows, depth, breadth, static_cast<std::size_t>(std::min(limit, budget))));
          REQUIRE(drafter.passes <= depth);
        }
      }
    }
  }
}

TEST_CASE("a chain is a fixed tree of breadth one") {
  testing::row_drafter drafter(6, path_rows);
  for (const int length : {1, 2, 5, 40}) {
    chain policy({.length = length});
    for (const int limit : {0, 1, 4, 100}) {
      drafter.passes = 0;
      const tree<> t = grow(policy, drafter, limit);
      check_equal(t, naive_fixed(path_rows, length, 1, static_cast<std::size_t>(std::min(limit, length))));
      REQUIRE(drafter.passes == std::min(limit, length));
    }
  }
}
