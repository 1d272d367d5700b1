// SPDX-License-Identifier: BSL-1.0
#include "espalier/interop/tensorrt_tree.hpp"

#include "catch.hpp"
#include "interop/arrays.hpp"
#include "interop/batches.hpp"

using namespace espalier;
namespace io = espalier::interop;

TEST_CASE("TensorRT-LLM's tree, by hand: leaves from left to right, rows and paths that nobody has") {
  const tensorrt_arrays found(uneven_batch(4), {6, 4});
  CHECK(found.paths == ints{0, 1, -1, -1, 0, 2, 4, -1, 0, 3, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1});
  CHECK(found.mask == ints{1, 3, 5, 9, 21, 0});
  CHECK(found.offsets == ints{0, 1, 1, 1, 2, 0});
  tree_batch root;
  root.add(tree_of({-1}), node_order::insertion, 9);
  const tensorrt_arrays alone(root, {2, 2});
  CHECK(alone.paths == ints{0, -1, -1, -1});
  CHECK(alone.mask == ints{1, 0});
}
