// SPDX-License-Identifier: BSL-1.0
#include "espalier/interop/flashinfer_mask.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "interop/batches.hpp"

using namespace espalier;
namespace io = espalier::interop;

TEST_CASE("FlashInfer's mask, by hand: rows do not begin on bytes, sequences do") {
  tree_batch b = small_batch(1);
  b.add(tree_of({-1, 0}), node_order::insertion, 0);
  std::vector<std::uint8_t> packed(7, 0xAA);
  std::vector<std::int32_t> indptr(3, -5);
  io::write_flashinfer_mask(b.view(), packed, indptr);
  CHECK(indptr == std::vector<std::int32_t>{0, 6, 7});
  CHECK(packed == std::vector<std::uint8_t>{131, 195, 226, 114, 90, 2, 0b1101});
  std::vector<std::uint16_t> xqa(24, 0xAAAA);
  io::write_xqa_mask(b.view(), 6, xqa);
  CHECK(xqa == std::vector<std::uint16_t>{1, 0, 3, 0, 5, 0, 11, 0, 19, 0, 37, 0, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  tree_batch wide;
  wide.add(espalier::testing::random_tree(40, 1, 500, 1), node_order::insertion, 3);  // a chain
  std::vector<std::uint16_t> halves(40 * 4);
  io::write_xqa_mask(wide.view(), 40, halves);
  for (std::size_t row = 0; row < 40; ++row) {
    for (std::size_t c = 0; c < 64; ++c)
      REQUIRE((halves[row * 4 + c / 16] >> c % 16 & 1) == (c <= row ? 1 : 0));
  }
}

TEST_CASE("A chain of pending tokens before the tree is a part of what comes back") {
  tree_batch b;
  const tree<> t = espalier::testing::random_tree(20, 5, 500, 0.5);
  tree_order order(20);
  order.compute(t, node_order::breadth_first);
  b.batch.begin_sequence(0, 6, 23);
  const std::vector<token_id> chain{1, 2, 3, t.view().token[0]};
  b.batch.add_chain(chain, 6, 1);
  b.batch.add_tree(t, order, 3);
  std::vector<node_id> parents(23), expected{-1, 0, 1, 2};
  for (std::size_t row = 1; row < 20; ++row)
    expected.push_back(3 + order.rows()[static_cast<std::size_t>(t.view().parent[order.nodes()[row]])]);
  std::vector<std::uint8_t> packed(200);
  std::vector<std::int32_t> indptr(2);
  io::write_flashinfer_mask(b.view(), packed, indptr);
  io::read_flashinfer_mask(packed, 23, 6, parents);
  CHECK(parents == expected);
}
