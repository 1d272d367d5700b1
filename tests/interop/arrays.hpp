// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/core/tree_order.hpp"
#include "espalier/interop/sglang_tree.hpp"
#include "espalier/interop/tensorrt_tree.hpp"
#include "interop/batches.hpp"

using longs = std::vector<std::int64_t>;
using ints = std::vector<std::int32_t>;

// SGLang's arrays for b.size() sequences of n rows.
template <class IntegerT>
struct sglang_arrays {
  sglang_arrays(const tree_batch& b, std::int32_t n,
                espalier::interop::tree_numbering numbering = espalier::interop::tree_numbering::of_batch)
      : positions(b.size() * static_cast<std::size_t>(n), -9),
        index(positions),
        next_token(positions),
        next_sibling(positions) {
    espalier::interop::write_sglang_tree<IntegerT>(b.view(), n, {positions, index, next_token, next_sibling},
                                                   numbering);
  }
  std::vector<IntegerT> positions, index, next_token, next_sibling;
};

struct tensorrt_arrays {
  tensorrt_arrays(const tree_batch& b, const espalier::interop::tensorrt_tree_shape& shape)
      : paths(b.size() * static_cast<std::size_t>(shape.n_paths()), -9),
        mask(b.size() * static_cast<std::size_t>(shape.n_words()), -9),
        offsets(b.size() * static_cast<std::size_t>(shape.max_tokens), -9) {
    espalier::interop::write_tensorrt_tree(b.view(), shape, {paths, mask, offsets});
  }
  ints paths, mask, offsets;
};

// The root, three children, and a child of the second: leaves from left to right are rows 1, 4, 3.
inline tree_batch uneven_batch(std::int32_t prefix) {
  tree_batch b;
  b.add(tree_of({-1, 0, 0, 0, 2}), espalier::node_order::breadth_first, prefix);
  return b;
}
