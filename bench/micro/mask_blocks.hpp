// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/tree_mask.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/core/tree_view.hpp"

namespace espalier {

//! Counts the blocks of a tree's mask that are not empty: the work of attention that goes block by block.
//!
//! A block is `size` rows by `size` columns; rows are the tree's nodes in the given order, columns the cache's `prefix`
//! committed rows, all visible, and then the nodes in the same order. A pass that has the root's row in the cache
//! already leaves it out of both (with_root = false).
//!
//! Shapes      mask [n_rows][prefix + n_rows]; it is not built
//! Complexity  O(n_rows * column blocks / 32); allocates only for more than any count before
//! Errors      option_error for a block size outside 1 to 1048576 or a negative prefix
//! Pre         order was computed for this tree
//! Source      Xiong et al., DySpec, appendix C
class mask_blocks {
 public:
  std::int64_t count(tree_view tree, const tree_order& order, std::int32_t size, std::int32_t prefix = 0,
                     bool with_root = true) {
    require_option("block size", size, 1, 1 << 20);
    require_option("prefix", prefix, 0, 1 << 30);
    const std::int32_t first = with_root ? 0 : 1, n = tree.n_nodes - first;
    // Columns are numbered from the block that holds the first node: all blocks before it are full of prefix.
    const std::int32_t shared = prefix % size, words = mask_words((shared + n) / size + 1);
    seen_.resize(static_cast<std::size_t>(n) * static_cast<std::size_t>(words));
    block_.resize(static_cast<std::size_t>(words));
    const auto row = [&](std::int32_t i) {
      return mask_row{seen_.data() + static_cast<std::ptrdiff_t>(i) * words, words};
    };
    const mask_row block{block_.data(), words};
    std::int64_t total = 0;
    for (std::int32_t i = 0; i < n; ++i) {
      if (i % size == 0) {
        total += prefix / size;
        block.clear();
        if (shared > 0) block.set(0);
      }
      const node_id parent = tree.parent[order.nodes()[static_cast<std::size_t>(i + first)]];
      const std::int32_t above = parent == no_node ? -1 : order.rows()[static_cast<std::size_t>(parent)] - first;
      row(i).clear();
      if (above >= 0) row(i).include(row(above));
      row(i).set((shared + i) / size);
      block.include(row(i));
      if (i % size == size - 1 || i == n - 1) {
        for (const std::uint32_t word : block_)
          total += std::popcount(word);
      }
    }
    return total;
  }

 private:
  std::vector<std::uint32_t> seen_;   // [n_rows][words] the column blocks in which each row sees a node
  std::vector<std::uint32_t> block_;  // [words] the column blocks that the rows of one block see together
};

}  // namespace espalier
