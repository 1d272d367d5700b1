// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "drafter/marginal_drafter.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"

// Adds a bias by the token before to a row, as DSpark does.
template <class NumberT>
void add_bias(espalier::token_id before, std::span<NumberT> row) {
  for (std::size_t t = 0; t < row.size(); ++t)
    row[t] += static_cast<NumberT>((3 * before + 2 * static_cast<espalier::token_id>(t)) % 5) / 2;
}

// A block drafter that corrects its rows so.
template <class NumberT>
struct biased_drafter : marginal_drafter<NumberT> {
  using marginal_drafter<NumberT>::marginal_drafter;
  void correct(espalier::tree_view tree, espalier::node_id u, std::span<NumberT> row) { add_bias(tree.token[u], row); }
};

// A block drafter whose rows depend on every token of the path and on where it stands, as XPress's do.
template <class NumberT>
struct refining_drafter : marginal_drafter<NumberT> {
  using marginal_drafter<NumberT>::marginal_drafter;
  void correct(espalier::tree_view tree, espalier::node_id u, std::span<NumberT> row) {
    for (; u != espalier::root_node; u = tree.parent[u])
      add_bias(tree.token[u] + tree.depth[u], row);
    add_bias(tree.token[u], row);
  }
};

// A block drafter that gives its rows as columns of some tokens alone, here all but token 1 and in falling order.
template <class BlockT>
struct narrow_drafter : BlockT {
  using BlockT::BlockT;
  using number = std::remove_cvref_t<decltype(*std::declval<BlockT&>().propose_block().data)>;
  std::vector<espalier::token_id> few = [this] {
    std::vector<espalier::token_id> all;
    for (espalier::token_id t = this->vocab_size() - 1; t >= 0; --t)
      if (t != 1) all.push_back(t);
    return all;
  }();
  std::vector<number> narrow{};

  std::span<const espalier::token_id> tokens() const { return few; }
  espalier::vocab_rows<number> propose_block() {
    const espalier::vocab_rows<number> wide = BlockT::propose_block();
    narrow.clear();
    for (std::int32_t i = 0; i < wide.n_rows; ++i) {
      for (const espalier::token_id t : few)
        narrow.push_back(wide.row(i)[static_cast<std::size_t>(t)]);
    }
    return {narrow.data(), wide.n_rows, static_cast<std::int32_t>(few.size())};
  }
};
// Chooses among two tokens of each row by the token before, as DFlash2 does: other tokens have probability 0.
template <class NumberT>
struct choosing_drafter : marginal_drafter<NumberT> {
  using marginal_drafter<NumberT>::marginal_drafter;
  void correct(espalier::tree_view tree, espalier::node_id u, std::span<NumberT> row) {
    std::vector<std::size_t> order(row.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return row[a] > row[b]; });
    for (std::size_t i = 2; i < order.size(); ++i)
      row[order[i]] = -std::numeric_limits<NumberT>::infinity();
    add_bias(tree.token[u], row);
  }
};
