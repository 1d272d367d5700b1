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
