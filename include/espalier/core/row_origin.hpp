// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! The origin of a row of logits. Messages about wrong numbers in the row name it. Trivially copyable.
struct row_origin {
  enum class model : std::int32_t { any, target, draft };
  enum class kind : std::int32_t {
    row,    //!< a row known by its number alone
    node,   //!< the row of the token after a node of the tree
    token,  //!< the row that follows a token of the text, if this token is no node of the tree
    block,  //!< a row of a drafted block
  };

  model of = model::any;
  kind at = kind::row;
  std::int32_t index = 0;      //!< number of the row, of the node, or of the token in the text
  std::int32_t sequence = -1;  //!< number of the sequence; -1 if it is not known

  constexpr row_origin() = default;
  ESPALIER_HOST_DEVICE constexpr row_origin(std::int32_t row) : index(row) {}
  ESPALIER_HOST_DEVICE constexpr row_origin(model whose, kind where, std::int32_t which, std::int32_t of_sequence)
      : of(whose), at(where), index(which), sequence(of_sequence) {}

  ESPALIER_HOST_DEVICE static constexpr row_origin after_node(model whose, std::int32_t sequence, node_id u) {
    return {whose, kind::node, u, sequence};
  }
  ESPALIER_HOST_DEVICE static constexpr row_origin after_token(model whose, std::int32_t sequence, std::int32_t i) {
    return {whose, kind::token, i, sequence};
  }
  ESPALIER_HOST_DEVICE static constexpr row_origin of_block(std::int32_t row) {
    return {model::draft, kind::block, row, -1};
  }

  //! The origin of row i of the same kind, model and sequence.
  ESPALIER_HOST_DEVICE constexpr row_origin numbered(std::int32_t i) const { return {of, at, i, sequence}; }
};

namespace detail {

inline message_type in_words(row_origin row) {
  const char *before = "in row ", *after = "";
  switch (row.at) {
    case row_origin::kind::row:
      break;
    case row_origin::kind::node:
      before = "after node ", after = row.index == root_node ? " (the pending token)" : "";
      break;
    case row_origin::kind::token:
      before = "after token ", after = row.sequence < 0 ? " of the text" : "";
      break;
    case row_origin::kind::block:
      after = " of the block";
      break;
  }
  const message_piece pieces[] = {before, row.index, after, " of sequence ", row.sequence};
  return joined(std::span(pieces).first(row.sequence < 0 ? 3 : 5));
}

// Raises numeric_error for a logit that is NaN or plus infinity.
[[noreturn]] inline void raise_bad_logit(row_origin row, std::int64_t token, double value) {
  constexpr const char* whose[] = {"the ", "the target's ", "the draft's "};
  raise<numeric_error>(whose[static_cast<int>(row.of)], "logit of token ", token, " ", in_words(row), " is ", value,
                       "; logits must be finite or minus infinity. The model or its weights are damaged.");
}

// Raises numeric_error for a row whose logits allow no token.
[[noreturn]] inline void raise_no_token(row_origin row) {
  constexpr const char* whose[] = {"all ", "all of the target's ", "all of the draft's "};
  raise<numeric_error>(whose[static_cast<int>(row.of)], "logits ", in_words(row),
                       " are minus infinity; one token at least must be possible.");
}

// Raises input_error for a row without entries.
[[noreturn]] inline void raise_empty_row(row_origin row) {
  raise<input_error>("there is no logit ", in_words(row), ": the row is empty.");
}

}  // namespace detail

}  // namespace espalier
