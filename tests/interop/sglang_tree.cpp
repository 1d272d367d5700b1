// SPDX-License-Identifier: BSL-1.0
#include "espalier/interop/sglang_tree.hpp"

#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "interop/arrays.hpp"
#include "interop/batches.hpp"

using namespace espalier;
namespace io = espalier::interop;

TEST_CASE("SGLang's arrays, by hand: two sequences of six rows") {
  tree_batch b = small_batch(10);
  b.add(tree_of({-1, 0, 1, 0}), node_order::insertion, 7);
  const sglang_arrays<std::int64_t> found(b, 6);
  CHECK(found.positions == longs{10, 11, 11, 12, 12, 12, 7, 8, 9, 8, 7, 7});
  CHECK(found.index == longs{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  CHECK(found.next_token == longs{1, 3, 5, -1, -1, -1, 1, 2, -1, -1, -1, -1});
  CHECK(found.next_sibling == longs{-1, 2, -1, 4, -1, -1, -1, 3, -1, -1, -1, -1});
  const sglang_arrays<std::int32_t> relative(b, 6, io::tree_numbering::of_tree);
  CHECK(relative.positions == ints{0, 1, 1, 2, 2, 2, 0, 1, 2, 1, 0, 0});
  CHECK(relative.index == ints{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
  CHECK(relative.next_token == ints{1, 3, 5, -1, -1, -1, 1, 2, -1, -1, -1, -1});
}

TEST_CASE("SGLang's selection, by hand: read, and written") {
  // Three levels of two: candidates 0, 1; then 2, 3 below 0 and 4, 5 below 1; then 6, 7 below 3 and 8, 9 below 4.
  std::vector<node_id> parents(6, -9);
  io::read_sglang_selection(longs{-1, 0, 1, 3, 4}, longs{0, 1, 2, 3, 7}, 2, parents);
  CHECK(parents == std::vector<node_id>{-1, 0, 0, 1, 1, 4});
  longs list(4, 77), selected(5, 77);
  io::write_sglang_selection(small_batch(3).view(), 0, 2, list, selected);
  CHECK(selected == longs{0, 1, 2, 3, 4});
  CHECK(list == longs{-1, 0, 1, -1});
  longs alone(1, 77);
  tree_batch root;
  root.add(tree_of({-1}), node_order::insertion, 0);
  io::write_sglang_selection(root.view(), 0, 2, alone, {});
  CHECK(alone == longs{-1});
}
