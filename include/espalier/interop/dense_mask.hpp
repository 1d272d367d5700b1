// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "espalier/config.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/token.hpp"
#include "espalier/interop/row_parents.hpp"
#include "espalier/interop/sequence_mask.hpp"

namespace espalier::interop {

//! An element of a dense mask. For integers and bool: 1 if the row sees the column, else 0. For other types: the number
//! that is added to a score, which is 0 if the row sees the column, else minus infinity.
template <class ElementT>
ESPALIER_HOST_DEVICE ElementT dense_mask_element(bool sees) {
  if constexpr (std::is_integral_v<ElementT>) {
    return static_cast<ElementT>(sees);
  } else {
    return static_cast<ElementT>(sees ? 0.0F : -INFINITY);
  }
}

//! Writes the whole mask of a forward batch, prefix and tree, one element for each column, as the attention of a
//! framework takes it.
//!
//! Shapes      out [n_rows][columns]; column c is cache slot c of the row's own sequence, and is hidden if the sequence
//!             has no such slot
//! Complexity  O(n_rows * columns)
//! Errors      input_error if a row sees a slot beyond the columns, or out is too small
template <class ElementT>
void write_dense_mask(const forward_batch_view& batch, std::int32_t columns, std::span<ElementT> out) {
  detail::require_room("a dense mask", out.size(), static_cast<std::int64_t>(batch.n_rows()) * columns);
  std::size_t i = 0;
  for (const batch_sequence& s : batch.sequences) {
    const sequence_mask mask(s, batch.mask.data());
    for (std::int32_t row = 0; row < mask.n_rows; ++row) {
      if (mask.prefix + mask.n_columns(row) > columns) {
        raise<input_error>("a dense mask of ", columns, " columns cannot show the ", mask.prefix + mask.n_columns(row),
                           " slots of sequence ", s.sequence, ".");
      }
      for (std::int32_t c = 0; c < columns; ++c)
        out[i++] = dense_mask_element<ElementT>(mask.sees(row, c));
    }
  }
}

//! Reads the tree of one sequence from its n rows of a dense mask. The first `prefix` columns are committed slots, the
//! next n are the rows of the tree.
//!
//! Shapes      mask [n][columns]; parents [n]: the parent row of each row
//! Errors      input_error if mask or parents is too small, prefix is negative or prefix + n more than `columns`, an
//!             element is neither of the two values, a committed column
//!             is hidden, columns beyond the tree are visible, or the rest is the mask of no tree
template <class ElementT>
void read_dense_mask(std::span<const ElementT> mask, std::int32_t n, std::int32_t columns, std::int32_t prefix,
                     std::span<node_id> parents) {
  detail::require_room("a dense mask", mask.size(), static_cast<std::int64_t>(n) * columns);
  if (prefix < 0 || n > columns - prefix) {
    raise<input_error>("a mask of ", columns, " columns does not hold ", prefix, " committed slots and ", n, " rows.");
  }
  const auto at = [&](std::int32_t row, std::int32_t c) {
    return mask[static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) + static_cast<std::size_t>(c)] ==
           dense_mask_element<ElementT>(true);
  };
  for (std::int32_t row = 0; row < n; ++row) {
    for (std::int32_t c = 0; c < columns; ++c) {
      const ElementT element =
          mask[static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) + static_cast<std::size_t>(c)];
      if (!at(row, c) && !(element == dense_mask_element<ElementT>(false))) {
        raise<input_error>("column ", c, " in row ", row, " of the mask is neither visible nor hidden.");
      }
      if (at(row, c) != (c < prefix) && (c < prefix || c >= prefix + n)) {
        raise<input_error>("column ", c, " in row ", row, " of the mask is ", c < prefix ? "hidden" : "visible",
                           ", but ", c < prefix ? "committed slots are visible." : "no row is there.");
      }
    }
  }
  read_parents_of_mask(
      n, [&](std::int32_t row, std::int32_t c) { return at(row, prefix + c); }, parents);
}

}  // namespace espalier::interop
