// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/verifier/walk/walk.hpp"
#include "parts.hpp"

namespace parts {

//! The row of each node: as row_of says, or, if its data is a null pointer, row u for node u.
//!
//! Errors      input_error if there are fewer entries than nodes, or one is no row; -1 is allowed where `may_lack`
inline std::vector<std::int32_t> rows_of_nodes(std::string_view what, std::span<const std::int32_t> row_of,
                                               std::int32_t n_nodes, std::int32_t n_rows, bool may_lack) {
  std::vector<std::int32_t> rows(row_of.begin(), row_of.end());
  if (row_of.data() == nullptr) {
    rows.resize(static_cast<std::size_t>(n_nodes));
    std::iota(rows.begin(), rows.end(), 0);
  }
  if (static_cast<std::int32_t>(rows.size()) < n_nodes)
    raise<input_error>(what, " names the rows of ", rows.size(), " nodes, but the tree has ", n_nodes, " nodes.");
  rows.resize(static_cast<std::size_t>(n_nodes));
  for (std::size_t u = 0; u < rows.size(); ++u) {
    if (row_of.data() == nullptr && may_lack && rows[u] >= n_rows) rows[u] = -1;
    if (rows[u] >= n_rows || rows[u] < (may_lack ? -1 : 0))
      raise<input_error>(what, " has ", n_rows, " rows, but node ", u, " is said to have row ", rows[u], ".");
  }
  return rows;
}

//! Checks the rows of the nodes that a policy wants: they are there, and are distributions.
//!
//! Errors      input_error if no node is wanted, or one has no row; numeric_error
template <class NumberT>
void require_answer(std::span<const node_id> wanted, const node_rows<NumberT>& rows) {
  if (wanted.empty()) raise<input_error>("the policy wants no row: its tree is complete, or has not begun to grow.");
  for (const node_id u : wanted) {
    if (!rows.has(u)) raise<input_error>("the policy wants the row of node ", u, ", which is not given.");
    espalier::detail::require_distribution(rows.row(u), "draft", u);
  }
}

//! Checks that the rows which a tree's draws need are there.
//!
//! Errors      input_error that names a node
inline void require_draft_rows(tree_view t, std::span<const std::int32_t> row_of) {
  for (node_id u = 0; u < t.n_nodes; ++u) {
    if (!t.is_leaf(u) && row_of[static_cast<std::size_t>(u)] < 0)
      raise<input_error>("node ", u, " has children, but the draft has no row for it.");
  }
}

//! Checks that the rows of draft and target are of equal length.
inline void require_one_vocabulary(std::int32_t draft, std::int32_t target) {
  if (draft != target)
    raise<input_error>("the draft's rows have ", draft, " tokens, but the target's have ", target, ".");
}

//! Checks that the tokens of a tree are in a vocabulary.
inline void require_vocabulary(tree_view t, std::int32_t vocab) {
  for (node_id u = 1; u < t.n_nodes; ++u) {
    if (t.token[u] < 0 || t.token[u] >= vocab)
      raise<input_error>("node ", u, " has token ", t.token[u], ", but the vocabulary ends at ", vocab - 1, ".");
  }
}

//! Target rows that are probabilities already. A verifier checks each that it reads.
template <class NumberT>
class given_target final : public target_part<NumberT> {
 public:
  explicit given_target(const node_rows<NumberT>& rows) : rows_(rows) {}
  std::span<const NumberT> row(node_id u) override { return rows_.row(u); }
  token_id argmax(node_id u) override {
    const auto row = rows_.row(u);
    for (std::size_t t = 0; t < row.size(); ++t) {
      if (!std::isfinite(row[t]))
        raise<numeric_error>("probability ", t, " of the target's row of node ", u, " is ", row[t], ".");
    }
    return static_cast<token_id>(std::max_element(row.begin(), row.end()) - row.begin());
  }

 private:
  node_rows<NumberT> rows_;
};

}  // namespace parts
