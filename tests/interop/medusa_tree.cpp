// SPDX-License-Identifier: BSL-1.0
#include "espalier/interop/medusa_tree.hpp"

#include <vector>

#include "catch.hpp"
#include "interop/arrays.hpp"
#include "interop/batches.hpp"

using namespace espalier;
namespace io = espalier::interop;

TEST_CASE("Medusa's and EAGLE's buffers, by hand") {
  const tree_batch b = uneven_batch(5);
  longs indices(5), positions(5), retrieve(9);
  std::vector<float> mask(25);
  const ints ranks{0, 0, 1, 3, 2};
  const auto write = [&](io::leaf_order leaves) {
    return io::write_medusa_tree(b.view(), 0, ranks, 10, 3, leaves, {indices, positions, mask, retrieve});
  };
  REQUIRE(write(io::leaf_order::medusa) == 3);
  CHECK(indices == longs{0, 1, 2, 4, 13});
  CHECK(positions == longs{0, 1, 1, 1, 2});
  CHECK(mask == std::vector<float>{1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 1});
  CHECK(retrieve == longs{0, 2, 4, 0, 3, -1, 0, 1, -1});
  REQUIRE(write(io::leaf_order::eagle) == 3);
  CHECK(retrieve == longs{0, 1, -1, 0, 2, 4, 0, 3, -1});
}
