// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/core/tree_view.hpp"

namespace espalier {

//! Number of 32-bit words that hold one bit for each of `columns` columns.
ESPALIER_HOST_DEVICE constexpr std::int32_t mask_words(std::int32_t columns) {
  return (columns + 31) / 32;
}

//! One row of a bit-packed mask: column c is visible if bit c % 32 of word c / 32 is set, counted from the least
//! significant bit. A view; trivially copyable.
struct mask_row {
  std::uint32_t* words = nullptr;
  std::int32_t n_words = 0;

  ESPALIER_HOST_DEVICE void clear() const {
    for (std::int32_t w = 0; w < n_words; ++w)
      words[w] = 0;
  }
  ESPALIER_HOST_DEVICE void set(std::int32_t column) const { words[column / 32] |= 1U << (column % 32); }
  ESPALIER_HOST_DEVICE bool test(std::int32_t column) const { return (words[column / 32] >> (column % 32) & 1U) != 0; }
  //! Makes every column visible that the other row sees.
  //!
  //! Pre         the other row has at least as many words as this one; its further words are ignored
  ESPALIER_HOST_DEVICE void include(const mask_row& other) const {
    for (std::int32_t w = 0; w < n_words; ++w)
      words[w] |= other.words[w];
  }
  //! Makes columns 0 to n - 1 visible.
  ESPALIER_HOST_DEVICE void include_first(std::int32_t n) const {
    for (std::int32_t w = 0; w < n / 32; ++w)
      words[w] = ~0U;
    if (n % 32 != 0) words[n / 32] |= (1U << (n % 32)) - 1U;
  }
};

//! Writes the mask of a tree: each node sees its ancestors and itself. Rows and columns are in the given order.
//!
//! Shapes      out [n_nodes][mask_words(n_nodes)]
//! Pre         order was computed for this tree
//! Complexity  O(n_nodes^2 / 32)
//! Source      every paper of tree attention; DynaTree, section 3.4
inline void write_tree_mask(tree_view tree, const tree_order& order, std::span<std::uint32_t> out) {
  const std::int32_t words = mask_words(tree.n_nodes);
  const auto row = [&](std::int32_t i) { return mask_row{out.data() + static_cast<std::ptrdiff_t>(i) * words, words}; };
  for (std::int32_t i = 0; i < tree.n_nodes; ++i) {
    const node_id u = order.nodes()[static_cast<std::size_t>(i)];
    row(i).clear();
    if (u != root_node) row(i).include(row(order.rows()[static_cast<std::size_t>(tree.parent[u])]));
    row(i).set(i);
  }
}

}  // namespace espalier
