// SPDX-License-Identifier: BSL-1.0
#include "espalier/core/forward_batch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "core/orders.hpp"
#include "espalier/testing/random_tree.hpp"

using namespace espalier;

static_assert(std::is_trivially_copyable_v<forward_batch_view>);

TEST_CASE("the forward batch of a chain and a tree equals an independent construction") {
  forward_batch batch;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    const int n_nodes = static_cast<int>(seed % 9) * 9 + 1;
    const int pending = static_cast<int>(seed % 5) * 13 + 1;
    const int prefix = static_cast<int>(seed * 7 % 31);
    const node_order which = orders[seed % orders.size()];
    const tree<> t = testing::random_tree(n_nodes, seed, 100, 0.5);
    const tree_view view = t;
    tree_order order(n_nodes);
    order.compute(view, which);
    std::vector<token_id> chain;
    for (int i = 0; i + 1 < pending; ++i)
      chain.push_back(100 + i);
    chain.push_back(view.token[0]);
    const int rows = pending + n_nodes - 1;

    batch.clear();
    batch.begin_sequence(3, prefix, rows);
    batch.add_chain(chain, prefix, 1);
    batch.add_tree(view, order, pending - 1);
    const forward_batch_view out = batch.view();

    REQUIRE(out.n_rows() == rows);
    REQUIRE(out.sequences.size() == 1);
    const batch_sequence& s = out.sequences[0];
    REQUIRE(s.sequence == 3);
    REQUIRE(s.prefix == prefix);
    REQUIRE(s.row_begin == 0);
    REQUIRE(s.row_end == rows);
    REQUIRE(out.mask.size() == static_cast<std::size_t>(rows * s.mask_words));
    REQUIRE(out.outputs.size() == static_cast<std::size_t>(n_nodes));
    bool right = true;
    for (int r = 0; r < rows; ++r) {
      const auto i = static_cast<std::size_t>(r);
      // What the row must be: a place in the chain, or a node with its path.
      const node_id u = r < pending ? root_node : order.nodes()[static_cast<std::size_t>(r - pending + 1)];
      std::vector<char> sees(static_cast<std::size_t>(s.mask_words) * 32, 0);
      for (int j = 0; j < std::min(r + 1, pending); ++j)
        sees[static_cast<std::size_t>(j)] = 1;
      for (const node_id a : testing::path_to(view, u)) {
        if (a != root_node) sees[static_cast<std::size_t>(pending - 1 + order.rows()[static_cast<std::size_t>(a)])] = 1;
      }
      right = right && out.tokens[i] == (r < pending ? chain[i] : view.token[u]);
      right = right && out.positions[i] == (r < pending ? prefix + r : prefix + pending - 1 + view.depth[u]);
      right = right && out.slots[i] == prefix + r;
      const auto mask = out.mask_of(s, r);
      for (std::size_t j = 0; j < sees.size(); ++j)
        right = right && (mask[j / 32] >> (j % 32) & 1U) == static_cast<unsigned>(sees[j]);
    }
    for (int i = 0; i < n_nodes; ++i)
      right = right && out.outputs[static_cast<std::size_t>(i)] == pending - 1 + i;
    REQUIRE(right);
  }
}

TEST_CASE("a forward batch is ragged: sequences of different prefix and width") {
  forward_batch batch;
  batch.begin_sequence(5, 10, 40);
  const std::vector<token_id> chain(40, 7);
  batch.add_chain(chain, 10, 0);
  batch.begin_sequence(2, 0, 1);
  batch.add_row(9, 0, 0, true);
  const forward_batch_view out = batch.view();
  REQUIRE(out.sequences.size() == 2);
  CHECK(out.sequences[0].mask_words == 2);
  CHECK(out.sequences[1].mask_words == 1);
  CHECK(out.sequences[1].row_begin == 40);
  CHECK(out.sequences[1].row_end == 41);
  CHECK(out.sequences[1].mask_begin == 80);
  CHECK(out.mask_of(out.sequences[1], 40)[0] == 1U);
  CHECK(out.mask_of(out.sequences[0], 39)[1] == 0xFFU);
  CHECK(out.slots[40] == 0);
  CHECK(std::vector<int>(out.outputs.begin(), out.outputs.end()) == std::vector<int>{40});
  batch.clear();
  CHECK(batch.view().n_rows() == 0);
}
