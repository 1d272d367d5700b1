// SPDX-License-Identifier: BSL-1.0
// Tested by tests/drafter/translated.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "espalier/concepts/row_processor.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"

//! The pieces that drafters over a drafter of another vocabulary share.
namespace espalier::detail {

// Returns the number of leading tokens of a text of n tokens that a drafter with room for so many does not follow. It
// grows in steps of half of the room, so that the text is seldom read anew.
inline std::size_t first_followed(std::size_t n, std::int32_t room_for) {
  const auto room = static_cast<std::size_t>((std::max)(room_for, std::int32_t{2}));
  const std::size_t half = room / 2;
  return n <= room ? 0 : (n - room + half - 1) / half * half;
}

// Changes the distribution of a node as a text's processor changes logits. Returns false, and leaves no distribution in
// the row, if the processor forbids every token that has a probability there.
//
// Shapes      row, logits [vocabulary]; the logits are working memory
template <class NumberT>
bool process_distribution(const row_processor<NumberT>& process, tree_view tree, node_id u, std::span<NumberT> row,
                          std::vector<NumberT>& logits) {
  for (std::size_t t = 0; t < row.size(); ++t)
    logits[t] = std::log(row[t]);
  process(tree, u, logits, row);
  const NumberT most = *std::max_element(row.begin(), row.end());
  if (!(most > -std::numeric_limits<NumberT>::infinity())) return false;
  double sum = 0;
  for (NumberT& q : row)
    sum += static_cast<double>(q = std::exp(q - most));
  for (NumberT& q : row)
    q = static_cast<NumberT>(static_cast<double>(q) / sum);
  return true;
}

}  // namespace espalier::detail
