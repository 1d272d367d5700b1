// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/prompt_chunk.cuh"
#include "espalier/cuda/core/text_batch.cuh"

namespace espalier::cuda {

//! Rows of the target's last pass whose hidden states a drafter reads, and where in which texts they stand: the
//! accepted paths of a round, or the tokens of one text that a prefill has read. By value into kernels; what is there
//! is known on the device alone.
struct state_rows {
  text_batch texts;                       //!< of a round
  path_view paths;                        //!< of a round, before the texts are written on; of a prefill there is none
  const batch_sequence* lanes = nullptr;  //!< of the round's pass: where each lane's rows begin
  std::int32_t place = 0;                 //!< of a prefill's text
  std::int32_t first = 0;                 //!< of a prefill: where row 0 of the pass stands
  std::int32_t begin = 0;                 //!< those before it are left out
  std::int32_t max = 0;                   //!< of each lane: what launches are made for
  const prompt_chunk* chunks = nullptr;   //!< of prompts that a round reads, each as a lane

  //! Of each path `max` rows at most.
  static state_rows of(const text_batch& texts, const path_view& paths, const batch_sequence* lanes, std::int32_t max) {
    return {texts, paths, lanes, 0, 0, 0, paths.max < max ? paths.max : max};
  }
  static state_rows of_prefill(std::int32_t place, std::int32_t first, std::int32_t n) {
    return {{}, {}, nullptr, place, first, 0, n};
  }
  //! Of each chunk `max` rows at most.
  static state_rows of_chunks(const prompt_chunk* chunks, std::int32_t n_chunks, std::int32_t max) {
    state_rows rows;
    rows.texts.n = n_chunks;
    rows.chunks = chunks;
    rows.max = max;
    return rows;
  }

  std::int32_t n_lanes() const { return texts.n; }
  //! `many` of each lane, after the first `done`.
  state_rows part(std::int32_t done, std::int32_t many) const {
    state_rows some = *this;
    some.begin += done;
    some.max = many;
    return some;
  }

  //! Row `row` of the pass stands at `position` of the text in `place`; -1: it is not there.
  struct entry {
    std::int32_t place = -1;
    std::int32_t row = 0;
    std::int32_t position = 0;
  };
  //! In kernels: i from 0 to max - 1.
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
