// SPDX-License-Identifier: BSL-1.0
// Tested by tests/sampling/lazy_rows.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! Rows over the vocabulary, stored one after the other: logits, or probabilities. A view; trivially copyable; valid
//! until the part that made it computes the next rows.
//!
//! Shapes      data [n_rows][vocab]
template <class NumberT>
struct vocab_rows {
  const NumberT* data = nullptr;
  std::int32_t n_rows = 0;
  std::int32_t vocab = 0;

  //! The first number of row r.
  ESPALIER_HOST_DEVICE const NumberT* at(std::int32_t r) const { return data + static_cast<std::ptrdiff_t>(r) * vocab; }
  //! Row r as a span. On the host only: a span has no members for the device.
  std::span<const NumberT> row(std::int32_t r) const { return {at(r), static_cast<std::size_t>(vocab)}; }
};

//! The logits of a forward pass: one row for each batch row asked for, in the order of forward_batch_view::outputs.
using logits_view = vocab_rows<float>;

//! The rows of a round, found by node: the row of a node is the distribution that its children were drawn from.
//!
//! Shapes      row_of [n_nodes]: the row of a node in `rows`, -1 if none was asked for
//!             listed [n_rows][list_length]: if the drafter lists them, the tokens of each row with a probability
//!             above 0, in ascending order, then -1 up to list_length; policies then need not look through the row
template <class NumberT>
struct node_rows {
  vocab_rows<NumberT> rows;
  const std::int32_t* row_of = nullptr;
  const token_id* listed = nullptr;
  std::int32_t list_length = 0;

  ESPALIER_HOST_DEVICE bool has(node_id u) const { return row_of != nullptr && row_of[u] >= 0; }
  //! The first number of the row of node u.
  //!
  //! Pre         has(u)
  ESPALIER_HOST_DEVICE const NumberT* at(node_id u) const { return rows.at(row_of[u]); }
  //! The row of node u as a span. On the host only.
  //!
  //! Pre         has(u)
  std::span<const NumberT> row(node_id u) const { return rows.row(row_of[u]); }
  //! The tokens of the row of node u that have a probability above 0, in ascending order; empty if the drafter lists
  //! none. On the host only.
  //!
  //! Pre         has(u)
  std::span<const token_id> listed_tokens(node_id u) const {
    const token_id* first = listed + static_cast<std::ptrdiff_t>(row_of[u]) * list_length;
    std::size_t n = 0;
    while (n < static_cast<std::size_t>(list_length) && first[n] >= 0)
      ++n;
    return {first, n};
  }
};

//! node_rows that a sampler made: they are distributions by construction, which a verifier need not check.
template <class NumberT>
struct sampled_rows : node_rows<NumberT> {
  static constexpr bool are_distributions = true;
};

//! The answer of a BlockDrafter: logits of the next positions, the same for every path.
//!
//! Shapes      logits [block_length][columns]; row i predicts the token i + 1 positions after the pending one
//!             tokens [columns]: the token of each column; empty: columns are tokens
template <class NumberT>
struct block_rows {
  vocab_rows<NumberT> logits;
  std::span<const token_id> tokens{};

  token_id token_of(std::int32_t column) const {
    return tokens.empty() ? column : tokens[static_cast<std::size_t>(column)];
  }
};

template <class NumberT>
block_rows(vocab_rows<NumberT>) -> block_rows<NumberT>;
template <class NumberT>
block_rows(vocab_rows<NumberT>, std::span<const token_id>) -> block_rows<NumberT>;

//! The answer of a SequenceDrafter: tokens that may follow the pending one, in order, without probabilities.
struct token_run {
  std::span<const token_id> tokens;
  //! Number of the text's last tokens that also stood before the run in the place where it was found; 0 if that is not
  //! known. The larger this number, the likelier it is that the run comes next.
  std::int32_t match = 0;
};

}  // namespace espalier
