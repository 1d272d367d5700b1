// SPDX-License-Identifier: BSL-1.0
#include "../bench/micro/mask_blocks.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"
#include "core/orders.hpp"
#include "espalier/testing/random_tree.hpp"
#include "raises.hpp"
#include "vectors.hpp"

using namespace espalier;

namespace {

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
    const tree<> t = testing::random_tree(static_cast<int>(seed * 7 + 1), seed, 500, seed % 2 == 0 ? 0.0 : 0.6);
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
