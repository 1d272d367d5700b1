// SPDX-License-Identifier: BSL-1.0
// Orders, masks and the forward batch: what the tree looks like to a backend.
#include <algorithm>
#include <array>
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/tree_mask.hpp"
#include "espalier/core/tree_order.hpp"
#include "random_tree.hpp"
#include "vectors.hpp"

using namespace espalier;

static_assert(std::is_trivially_copyable_v<forward_batch_view>);
static_assert(std::is_trivially_copyable_v<mask_row>);

namespace {

constexpr std::array orders{node_order::insertion, node_order::breadth_first, node_order::depth_first,
                            node_order::heavy_path};
constexpr std::array order_names{"orig", "bfs", "dfs", "hpd"};

// One entry of layout.json. A forest (several -1) hangs below a root of its own, here node 0; else node 0 is its root.
struct layout_tree {
  explicit layout_tree(const nlohmann::json& entry)
      : parents(entry.at("parents").get<std::vector<int>>()),
        shift(std::count(parents.begin(), parents.end(), -1) > 1 ? 1 : 0),
        built(static_cast<int>(parents.size()) - 1 + shift) {
    built.reset(0);
    for (std::size_t i = shift == 1 ? 0 : 1; i < parents.size(); ++i)
      built.append(parents[i] + shift, static_cast<token_id>(i), 0);
  }
  std::vector<int> parents;
  int shift;
  tree<> built;
};

bool is_lawful(tree_view tree, const tree_order& order) {
  std::vector<char> seen(static_cast<std::size_t>(tree.n_nodes), 0);
  if (order.nodes().size() != seen.size() || order.rows().size() != seen.size() || order.nodes()[0] != root_node)
    return false;
  for (node_id u = 0; u < tree.n_nodes; ++u) {
    const auto row = static_cast<std::size_t>(order.rows()[static_cast<std::size_t>(u)]);
    if (row >= seen.size() || seen[row]++ != 0 || order.nodes()[row] != u) return false;
    if (u > 0 && order.rows()[static_cast<std::size_t>(tree.parent[u])] >= static_cast<std::int32_t>(row)) return false;
  }
  return true;
}

// Mask rows as text, '1' where visible, without the first `skipped` rows and columns.
std::vector<std::string> mask_text(tree_view tree, const tree_order& order, int skipped) {
  const auto words = static_cast<std::size_t>(mask_words(tree.n_nodes));
  std::vector<std::uint32_t> mask(words * static_cast<std::size_t>(tree.n_nodes), 0xDEADBEEFU);
  write_tree_mask(tree, order, mask);
  std::vector<std::string> out;
  for (int i = skipped; i < tree.n_nodes; ++i) {
    out.emplace_back();
    for (int j = skipped; j < tree.n_nodes; ++j) {
      const std::uint32_t word = mask[static_cast<std::size_t>(i) * words + static_cast<std::size_t>(j / 32)];
      out.back() += (word >> (j % 32) & 1U) != 0 ? '1' : '0';
    }
  }
  return out;
}

}  // namespace

TEST_CASE("layout vectors: orders, depths and masks agree exactly") {
  const nlohmann::json all = load_vectors("layout.json");
  REQUIRE(all.size() >= 22);
  int largest = 0;
  int masks = 0;
  for (const nlohmann::json& entry : all) {
    const layout_tree t(entry);
    const tree_view view = t.built;
    const auto n = static_cast<int>(t.parents.size());
    largest = std::max(largest, n);
    tree_order order(view.n_nodes);
    for (std::size_t o = 0; o < orders.size(); ++o) {
      order.compute(view, orders[o]);
      REQUIRE(is_lawful(view, order));
      std::vector<int> found(order.nodes().begin() + t.shift, order.nodes().end());
      for (int& u : found)
        u -= t.shift;
      REQUIRE(found == entry.at("orders").at(order_names[o]).get<std::vector<int>>());
    }
    if (!entry.contains("mask")) continue;
    for (int i = 0; i < n; ++i)
      REQUIRE(view.depth[i + t.shift] - t.shift == entry.at("depths").at(static_cast<std::size_t>(i)).get<int>());
    order.compute(view, node_order::insertion);
    REQUIRE(mask_text(view, order, t.shift) == entry.at("mask").get<std::vector<std::string>>());
    order.compute(view, node_order::depth_first);
    REQUIRE(mask_text(view, order, t.shift) == entry.at("mask_dfs").get<std::vector<std::string>>());
    ++masks;
  }
  CHECK(largest >= 2048);
  CHECK(masks >= 18);
}

TEST_CASE("every order is lawful for random trees, and one object serves trees of many sizes") {
  tree_order order(200);
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    const tree<> t = random_tree(static_cast<int>(seed * 5 + 1), seed, 500, seed % 2 == 0 ? 0.0 : 0.7);
    for (const node_order o : orders) {
      order.compute(t, o);
      REQUIRE(is_lawful(t, order));
    }
  }
}

TEST_CASE("mask rows: words, bits and unions") {
  STATIC_REQUIRE(mask_words(0) == 0);
  STATIC_REQUIRE(mask_words(1) == 1);
  STATIC_REQUIRE(mask_words(32) == 1);
  STATIC_REQUIRE(mask_words(33) == 2);
  std::array<std::uint32_t, 3> words{};
  const mask_row row{words.data(), 3};
  row.set(31);
  row.set(64);
  CHECK(words == std::array<std::uint32_t, 3>{0x80000000U, 0, 1});
  CHECK(row.test(31));
  CHECK_FALSE(row.test(32));
  for (std::int32_t n = 0; n <= 96; ++n) {
    row.clear();
    row.include_first(n);
    bool right = true;
    for (std::int32_t j = 0; j < 96; ++j)
      right = right && row.test(j) == (j < n);
    REQUIRE(right);
  }
}

TEST_CASE("the forward batch of a chain and a tree equals an independent construction") {
  forward_batch batch;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    const int n_nodes = static_cast<int>(seed % 9) * 9 + 1;
    const int pending = static_cast<int>(seed % 5) * 13 + 1;
    const int prefix = static_cast<int>(seed * 7 % 31);
    const node_order which = orders[seed % orders.size()];
    const tree<> t = random_tree(n_nodes, seed, 100, 0.5);
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
    batch.add_chain(chain, prefix, true);
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
      for (const node_id a : path_to(view, u)) {
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
  batch.add_chain(chain, 10, false);
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
