// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/delayed.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/testing/script_chance.hpp"
#include "tree_policy/flat_drafter.hpp"
#include "tree_policy/grow_tree.hpp"
#include "vectors.hpp"

using namespace espalier;

namespace {

// The tokens of the k-th path below u, by its slots: path k goes on in the slot that its rank among the paths at u
// says.
std::vector<std::vector<token_id>> paths_below(tree_view tree, node_id u, std::vector<int> members) {
  std::map<node_id, std::vector<int>> through;
  std::size_t slot = 0;
  for (const node_id child : tree.draws(u))
    through[child].push_back(members[slot++]);
  std::vector<std::vector<token_id>> paths(members.empty() ? 0 : static_cast<std::size_t>(members.back()) + 1);
  for (const auto& [child, group] : through) {
    const auto below = paths_below(tree, child, group);
    for (const int k : group) {
      auto& path = paths[static_cast<std::size_t>(k)];
      path.push_back(tree.token[child]);
      if (!tree.is_leaf(child)) {
        const auto& rest = below[static_cast<std::size_t>(k)];
        path.insert(path.end(), rest.begin(), rest.end());
      }
    }
  }
  return paths;
}

}  // namespace

TEST_CASE("delayed trees of the vectors: trunk and paths from the same uniforms") {
  for (const auto& entry : load_vectors("verify.json")) {
    const std::vector<std::int32_t> shape = entry["shape"];
    const auto q = entry["markov"]["Q"].get<std::vector<std::vector<double>>>();
    const auto path_by_path = entry["build_uniforms"].get<std::vector<double>>();
    // The file draws path by path; the policy draws all paths of a depth together.
    const auto paths = static_cast<std::size_t>(shape[0]);
    const auto trunk = static_cast<std::size_t>(shape[1]);
    const auto length = static_cast<std::size_t>(shape[2]);
    std::vector<double> uniforms(path_by_path.begin(), path_by_path.begin() + shape[1]);
    for (std::size_t d = 0; d < length; ++d) {
      for (std::size_t k = 0; k < paths; ++k)
        uniforms.push_back(path_by_path[trunk + k * length + d]);
    }
    script_chance chance(uniforms);
    testing::row_drafter drafter(static_cast<std::int32_t>(q[0].size()), [&](std::span<const token_id> path) {
      return path.size() == 1 ? q[0] : q[static_cast<std::size_t>(path.back()) + 1];
    });
    const tree<> t = grow(delayed({.paths = shape[0], .trunk = shape[1], .length = shape[2]}), drafter, chance);
    const tree_view view = t;
    INFO(entry["shape"].dump());
    REQUIRE(chance.used() == uniforms.size());
    REQUIRE(drafter.passes == shape[1] + shape[2]);
    node_id end = root_node;
    for (const token_id token : entry["trunk"].get<std::vector<token_id>>()) {
      end = view.find_child(end, token);
      REQUIRE(end != no_node);
    }
    REQUIRE(view.depth[end] == shape[1]);
    if (length == 0) continue;
    std::vector<int> members(paths);
    std::iota(members.begin(), members.end(), 0);
    REQUIRE(paths_below(view, end, members) == entry["paths"].get<std::vector<std::vector<token_id>>>());
  }
}

TEST_CASE("a delayed tree without paths is its trunk, and without both draws nothing") {
  testing::row_drafter drafter = flat_drafter(5);
  philox_chance chance(1, 0, 0);
  tree_view view;
  const tree<> trunk = grow(delayed({.paths = 4, .trunk = 3, .length = 0}), drafter, chance);
  view = trunk;
  CHECK(view.n_nodes == 4);
  CHECK(view.depth[3] == 3);
  const tree<> nothing = grow(delayed({.paths = 4, .trunk = 0, .length = 0}), drafter, chance);
  CHECK(nothing.size() == 1);
  CHECK(drafter.passes == 0);
}

TEST_CASE("what a limit cuts off does not depend on what was drawn") {
  testing::row_drafter drafter = flat_drafter(3);
  for (int limit = 0; limit <= 10; ++limit) {
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
      philox_chance chance(seed, 0, 0);
      const tree<> t = grow(delayed({.paths = 3, .trunk = 1, .length = 3}), drafter, chance, limit);
      REQUIRE(t.view().n_draws == limit);
    }
  }
}
