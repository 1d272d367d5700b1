// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>

#include "espalier/concepts/row_processor.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"

namespace espalier::detail {

// Makes the row after a node of which the processor leaves one token: all zeros but for that one. False, and nothing is
// written, where it leaves more, none, or a token outside the row.
template <class NumberT>
bool make_forced_row(const row_processor<NumberT>& process, tree_view tree, node_id u, std::span<NumberT> row) {
  const std::optional<token_id> only = process.only(tree, u);
  if (!only || *only < 0 || static_cast<std::size_t>(*only) >= row.size()) return false;
  std::fill(row.begin(), row.end(), NumberT{0});
  row[static_cast<std::size_t>(*only)] = 1;
  return true;
}

}  // namespace espalier::detail
