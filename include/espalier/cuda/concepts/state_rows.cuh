// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/text.cuh"

namespace espalier::cuda {

//! Rows of the target's last pass whose hidden states a drafter reads, and the positions of the text that they stand
//! at, one after the other. By value into kernels; what is there is known on the device alone.
struct state_rows {
  const std::int32_t* rows = nullptr;  //!< rows of the pass; nullptr: 0, 1, ...
  const std::int32_t* n = nullptr;     //!< [1] how many are there; nullptr: begin + max
  const text_state* text = nullptr;    //!< row 0 of these stands at the pending token's place; nullptr: at `first`
  std::int32_t first = 0;
  std::int32_t begin = 0;  //!< those before it are left out
  std::int32_t max = 0;    //!< what launches are made for

  //! The accepted path of a round, before the text is written on: at most `max` rows of it.
  static state_rows of(path_view path, text_view text, std::int32_t max) {
    return {path.rows, path.n, text.state, 0, 0, path.max < max ? path.max : max};
  }

  //! `many` of them, after the first `done`.
  state_rows part(std::int32_t done, std::int32_t many) const { return {rows, n, text, first, begin + done, many}; }

  //! In kernels: i from 0 to max - 1.
  ESPALIER_HOST_DEVICE bool has(std::int32_t i) const { return i < max && (n == nullptr || begin + i < *n); }
  ESPALIER_HOST_DEVICE std::int32_t row(std::int32_t i) const { return rows == nullptr ? begin + i : rows[begin + i]; }
  ESPALIER_HOST_DEVICE std::int32_t position(std::int32_t i) const {
    return (text == nullptr ? first : text->size - 1) + begin + i;
  }
};

}  // namespace espalier::cuda
