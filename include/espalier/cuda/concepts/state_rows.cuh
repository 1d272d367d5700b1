// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/drafter/block_diffusion.cu
#pragma once

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/prompt_chunk.cuh"
#include "espalier/cuda/core/text_batch.cuh"

namespace espalier::cuda {

//! The rows of the target's last pass whose hidden states a drafter reads, with the text and position of each: the rows
//! of the accepted paths of a round, of the tokens of one text that a prefill has read, or of the prompt chunks that a
//! round has read. Kernels get it by value; which rows there are is known only on the device.
struct state_rows {
  text_batch texts;                       //!< the texts of a round
  path_view paths;                        //!< the accepted paths of a round, before they join the texts; else none
  const batch_sequence* lanes = nullptr;  //!< where the rows of each lane begin in the round's pass
  std::int32_t place = 0;                 //!< place of the text that a prefill reads
  std::int32_t first = 0;                 //!< position in that text of the first row of the prefill's pass
  std::int32_t begin = 0;                 //!< number of leading rows of each lane that are left out
  std::int32_t max = 0;                   //!< number of rows of each lane that launches are made for
  const prompt_chunk* chunks = nullptr;   //!< the prompt chunks that a round has read, each a lane; else none

  //! The rows of the accepted paths of a round, at most `max` of each.
  static state_rows of(const text_batch& texts, const path_view& paths, const batch_sequence* lanes, std::int32_t max) {
    return {texts, paths, lanes, 0, 0, 0, paths.max < max ? paths.max : max};
  }
  //! The n rows of a prefill's pass, the first of which is token number `first` of the text in this place.
  static state_rows of_prefill(std::int32_t place, std::int32_t first, std::int32_t n) {
    return {{}, {}, nullptr, place, first, 0, n};
  }
  //! The rows of the prompt chunks of a round, at most `max` of each.
  static state_rows of_chunks(const prompt_chunk* chunks, std::int32_t n_chunks, std::int32_t max) {
    state_rows rows;
    rows.texts.n = n_chunks;
    rows.chunks = chunks;
    rows.max = max;
    return rows;
  }

  std::int32_t n_lanes() const { return texts.n; }
  //! These rows without the first `done` of each lane, and at most `many` of each lane. Pre: in a prefill, there are at
  //! least done + many rows
  state_rows part(std::int32_t done, std::int32_t many) const {
    state_rows some = *this;
    some.begin += done;
    some.max = many;
    return some;
  }

  //! A row of the pass, with the place of its text and its position there; a place of -1 says that there is no such
  //! row.
  struct entry {
    std::int32_t place = -1;
    std::int32_t row = 0;
    std::int32_t position = 0;
  };
  //! Row number i of a lane, i from 0 to max - 1. Called in kernels.
  ESPALIER_HOST_DEVICE entry at(std::int32_t lane, std::int32_t i) const {
    const std::int32_t k = begin + i;
    if (chunks != nullptr) {
      const prompt_chunk c = chunks[lane];
      return k < c.n ? entry{c.place, c.row + k, c.first + k} : entry();
    }
    if (paths.n == nullptr) return {place, k, first + k};
    const text_in_batch text = texts.at(lane);
    if (text.place < 0) return {};
    const path_view path = paths.of(text.place);
    if (k >= *path.n) return {};
    return {text.place, lanes[lane].row_begin + path.rows[k], text.text.state->size - 1 + k};
  }
};

}  // namespace espalier::cuda
