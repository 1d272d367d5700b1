// SPDX-License-Identifier: BSL-1.0
#include "espalier/interop/dense_mask.hpp"

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "interop/batches.hpp"

using namespace espalier;
namespace io = espalier::interop;

namespace {

constexpr float hidden = -std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("A dense mask, by hand: prefix 2, six rows, a column that nobody sees") {
  const tree_batch b = small_batch(2);
  const std::vector<std::string> expected{"111000000", "111100000", "111010000", "111101000", "111100100", "111010010"};
  std::vector<std::uint8_t> bytes(54, 9);
  std::vector<float> added(54, 9);
  io::write_dense_mask(b.view(), 9, std::span(bytes));
  io::write_dense_mask(b.view(), 9, std::span(added));
  for (std::size_t row = 0; row < 6; ++row) {
    for (std::size_t c = 0; c < 9; ++c) {
      CHECK(bytes[row * 9 + c] == (expected[row][c] == '1' ? 1 : 0));
      CHECK(added[row * 9 + c] == (expected[row][c] == '1' ? 0.0F : hidden));
    }
  }
}

TEST_CASE("A dense mask of a layer: its rows lie behind those of the layers before") {
  forward_batch batch;
  batch.begin_sequence(0, 2, 5);
  for (int row = 0; row < 2; ++row) {  // nodes 3 and 4, children of node 1
    const mask_row mask = batch.add_row(7 + row, 4, 3 + row, true);
    for (const int column : {0, 1, 3 + row})
      mask.set(column);
  }
  std::vector<std::uint8_t> bytes(14);
  io::write_dense_mask(batch.view(), 7, std::span(bytes));
  CHECK(bytes == std::vector<std::uint8_t>{1, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0, 0, 1});
}
