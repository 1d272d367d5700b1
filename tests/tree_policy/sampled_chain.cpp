// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/sampled_chain.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/enumerating_chance.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "raises.hpp"
#include "tree_policy/flat_drafter.hpp"
#include "tree_policy/grow_tree.hpp"

using namespace espalier;

TEST_CASE("a sampled chain is one path, drawn one token a pass") {
  testing::row_drafter drafter = flat_drafter(7);
  for (const int length : {0, 1, 5, 64}) {
    for (std::uint32_t seed = 0; seed < 10; ++seed) {
      philox_chance chance(seed, 0, 0);
      const tree<> chain = grow(sampled_chain({.length = length}), drafter, chance);
      REQUIRE(chain.size() == length + 1);
      REQUIRE(chain.view().n_draws == length);
      REQUIRE(drafter.passes == length);
      for (node_id u = 1; u < chain.size(); ++u)
        REQUIRE(chain.view().parent[u] == u - 1);
      const tree<> cut = grow(sampled_chain({.length = length}), drafter, chance, 3);
      REQUIRE(cut.size() == std::min(length, 3) + 1);
      REQUIRE(std::equal(cut.view().token, cut.view().token + cut.size(), chain.view().token));
    }
  }
}

TEST_CASE("the tokens of a sampled chain are drawn from their rows") {
  const std::vector<double> root{0.5, 0.2, 0.3}, after{0.1, 0, 0.9};
  testing::row_drafter drafter(3, [&](std::span<const token_id> path) { return path.size() == 1 ? root : after; });
  std::map<std::vector<token_id>, double> distribution;
  enumerating_chance chance;
  do {
    const tree<> t = grow(sampled_chain({.length = 2}), drafter, chance);
    distribution[{t.view().token[1], t.view().token[2]}] += chance.probability();
  } while (chance.next());
  CHECK(distribution.size() == 6);
  for (const auto& [tokens, probability] : distribution) {
    const double expected = root[static_cast<std::size_t>(tokens[0])] * after[static_cast<std::size_t>(tokens[1])];
    CHECK(std::abs(probability - expected) < 1e-15);
  }
}

TEST_CASE("a sampled chain of a length out of range is an error") {
  const auto message = [](int length) {
    return message_of<option_error>([=] { sampled_chain c({.length = length}); });
  };
  CHECK(message(0).empty());
  CHECK(says(message(-1), "length is -1", "between 0 and 64"));
  CHECK(says(message(65), "length is 65"));
}
