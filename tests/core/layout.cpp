// SPDX-License-Identifier: BSL-1.0
// Orders, masks and the forward batch: what the tree looks like to a backend.
#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/mask_blocks.hpp"
#include "espalier/core/tree_mask.hpp"
#include "espalier/core/tree_order.hpp"
#include "raises.hpp"
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

std::vector<int> subtree_sizes(tree_view tree, int skipped) {
  std::vector<int> sizes(static_cast<std::size_t>(tree.n_nodes), 0);
  for (node_id u = 0; u < tree.n_nodes; ++u) {
    for (const node_id a : path_to(tree, u))
      ++sizes[static_cast<std::size_t>(a)];
  }
  return {sizes.begin() + skipped, sizes.end()};
}

node_order order_named(const std::string& name) {
  return orders[static_cast<std::size_t>(std::find(order_names.begin(), order_names.end(), name) -
                                         order_names.begin())];
}

// Blocks of a mask written out in full, one look at each of its bits.
std::int64_t count_in_full(tree_view tree, const tree_order& order, int size, int prefix, int skipped) {
  const std::vector<std::string> mask = mask_text(tree, order, skipped);
  std::int64_t total = 0;
  for (std::size_t row = 0; row < mask.size(); row += static_cast<std::size_t>(size)) {
    const std::size_t end = std::min(mask.size(), row + static_cast<std::size_t>(size));
    std::vector<char> filled(
        (mask.size() + static_cast<std::size_t>(prefix + size - 1)) / static_cast<std::size_t>(size), 0);
    for (std::size_t r = row; r < end; ++r) {
      const std::string all = std::string(static_cast<std::size_t>(prefix), '1') + mask[r];
      for (std::size_t c = 0; c < all.size(); ++c) {
        if (all[c] == '1') filled[c / static_cast<std::size_t>(size)] = 1;
      }
    }
    total += std::count(filled.begin(), filled.end(), 1);
  }
  return total;
}

// The parent of each node is any of the nodes before it, each as likely.
tree<> recursive_tree(int n_nodes, std::mt19937& random) {
  tree<> t(n_nodes - 1);
  t.reset(0);
  while (!t.full()) {
    const auto parent = static_cast<node_id>(random() % static_cast<unsigned>(t.size()));
    t.append(parent, t.size(), 0);
  }
  return t;
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
    REQUIRE(subtree_sizes(view, t.shift) == entry.at("subtree_sizes").get<std::vector<int>>());
    order.compute(view, node_order::insertion);
    REQUIRE(mask_text(view, order, t.shift) == entry.at("mask").get<std::vector<std::string>>());
    order.compute(view, node_order::depth_first);
    REQUIRE(mask_text(view, order, t.shift) == entry.at("mask_dfs").get<std::vector<std::string>>());
    ++masks;
  }
  CHECK(largest >= 2048);
  CHECK(masks >= 18);
}

TEST_CASE("layout vectors: block counts agree exactly") {
  mask_blocks blocks;
  int counts = 0;
  for (const nlohmann::json& entry : load_vectors("layout.json")) {
    const layout_tree t(entry);
    const tree_view view = t.built;
    tree_order order(view.n_nodes);
    for (const nlohmann::json& expected : entry.at("block_count")) {
      INFO(view.n_nodes << " nodes, " << expected.dump());
      order.compute(view, order_named(expected.at(0)));
      REQUIRE(blocks.count(view, order, expected.at(1), expected.at(2), t.shift == 0) == expected.at(3));
      ++counts;
    }
  }
  CHECK(counts >= 850);
}

TEST_CASE("block counts are those of the mask written out in full: sizes, prefixes, orders, with the root or without") {
  mask_blocks blocks;
  tree_order order(150);
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const tree<> t = random_tree(static_cast<int>(seed * 7 + 1), seed, 500, seed % 2 == 0 ? 0.0 : 0.6);
    order.compute(t, orders[seed % orders.size()]);
    for (const int size : {1, 3, 16, 32, 128}) {
      for (const int prefix : {0, 1, 15, 32, 77}) {
        for (const bool with_root : {true, false}) {
          REQUIRE(blocks.count(t, order, size, prefix, with_root) ==
                  count_in_full(t, order, size, prefix, with_root ? 0 : 1));
        }
      }
    }
  }
  tree<> root(0);
  order.compute(root, node_order::insertion);
  CHECK(says(message_of<option_error>([&] { blocks.count(root, order, 0); }), "block size is 0"));
  CHECK(says(message_of<option_error>([&] { blocks.count(root, order, 32, -1); }), "prefix is -1"));
}

TEST_CASE("DySpec, Table 5: blocks of random recursive trees, as inserted and reordered, within 5 percent") {
  struct row {
    int nodes;
    double original, reordered;
  };
  mask_blocks blocks;
  for (const row& paper : {row{256, 36, 22.5}, row{512, 135.5, 52.8}}) {
    std::mt19937 random(5);
    tree_order order(paper.nodes);
    const int trees = 300;  // the mean is then known to half a percent
    double original = 0, reordered = 0;
    for (int i = 0; i < trees; ++i) {
      const tree<> t = recursive_tree(paper.nodes, random);
      order.compute(t, node_order::insertion);
      original += static_cast<double>(blocks.count(t, order, 32)) / trees;
      order.compute(t, node_order::depth_first);
      reordered += static_cast<double>(blocks.count(t, order, 32)) / trees;
    }
    INFO(paper.nodes << " nodes: " << original << ", " << reordered);
    CHECK(std::abs(original / paper.original - 1) < 0.05);
    CHECK(std::abs(reordered / paper.reordered - 1) < 0.05);
  }
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
