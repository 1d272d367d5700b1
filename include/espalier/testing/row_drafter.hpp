// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/testing/law_error.hpp"

namespace espalier::testing {

//! A StepDrafter without a model: the row after each node is a function of the path to it, root included.
//!
//! Errors      law_error from propose() if a policy asks about a node that is not in the tree or whose number is above
//!             the one that reserve() was called with, about a node before its parent, about a node twice in a
//!             round, or about the root together with others. A call for the root alone begins a round
template <class NumberT>
class basic_row_drafter {
 public:
  using row_function = std::function<std::vector<double>(std::span<const token_id> path)>;

  basic_row_drafter(std::int32_t vocab, row_function row) : vocab_(vocab), row_(std::move(row)) {}

  void begin(std::span<const token_id>) {}
  void commit(tree_view, verdict) {}
  void reserve(std::int32_t nodes) { row_of_.assign(static_cast<std::size_t>(nodes) + 1, -1); }
  std::int32_t capacity() const { return 1 << 20; }
  std::int32_t vocab_size() const { return vocab_; }

  void propose(tree_view tree, std::span<const node_id> nodes) {
    ++passes;
    for (const node_id u : nodes)
      require_law(u != root_node || nodes.size() == 1,
                  "the policy asks about the root together with other nodes: it "
                  "opens a round, alone.");
    if (nodes.size() == 1 && nodes[0] == root_node) {
      data_.clear();
      std::fill(row_of_.begin(), row_of_.end(), -1);
    }
    data_.reserve((row_of_.size() + 1) * static_cast<std::size_t>(vocab_));
    for (const node_id u : nodes) {
      const auto i = static_cast<std::size_t>(u);
      require_law(u >= 0 && u < tree.n_nodes && i < row_of_.size(), "the policy asks about node ", u, " of a tree of ",
                  tree.n_nodes, " nodes, ", row_of_.size(), " of which it may ask about.");
      require_law(row_of_[i] < 0, "the policy asks about node ", u, " twice.");
      require_law(u == root_node || row_of_[static_cast<std::size_t>(tree.parent[u])] >= 0,
                  "the policy asks about node ", u, " before its parent, node ", tree.parent[u], ".");
      row_of_[i] = static_cast<std::int32_t>(data_.size()) / vocab_;
      std::vector<token_id> path;
      for (node_id a = u; a != no_node; a = tree.parent[a])
        path.insert(path.begin(), tree.token[a]);
      const std::vector<double> row = row_(path);
      std::transform(row.begin(), row.end(), std::back_inserter(data_),
                     [](double p) { return static_cast<NumberT>(p); });
    }
  }

  void renumber(std::span<const node_id> was) {
    std::vector<std::int32_t> now(row_of_.size(), -1);
    for (std::size_t i = 0; i < was.size(); ++i) {
      if (was[i] >= 0) now[i] = row_of_[static_cast<std::size_t>(was[i])];
    }
    row_of_ = now;
  }

  node_rows<NumberT> rows() const {
    return {{data_.data(), static_cast<std::int32_t>(data_.size()) / vocab_, vocab_}, row_of_.data()};
  }

  int passes = 0;  //!< number of calls of propose() so far

 private:
  std::int32_t vocab_;
  row_function row_;
  std::vector<NumberT> data_;
  std::vector<std::int32_t> row_of_;
};

using row_drafter = basic_row_drafter<double>;

static_assert(RenumberingDrafter<row_drafter>);

}  // namespace espalier::testing
