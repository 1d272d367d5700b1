// SPDX-License-Identifier: BSL-1.0
// Tested by tests/embedded/static_decoder.cpp
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/core/sampling_options.hpp"

namespace espalier {

//! The sizes that a static_decoder has room for. From them each part computes, at compile time, how much memory it
//! takes.
struct static_capacity {
  std::int32_t nodes = 0;          //!< most drafted tokens of a round
  std::int32_t context = 0;        //!< tokens of the longest text, and rows of each cache
  std::int32_t vocabulary = 0;     //!< entries of the vocabulary
  std::int32_t prefill_rows = 16;  //!< tokens of the prompt that one pass takes, as in decoder_options
  //! Number of floats that the keys of one token take in the target's cache, over all layers; its values take as many.
  //! 0 for a cache that holds neither.
  std::int32_t cache_row = 0;
  std::int32_t draft_cache_row = -1;  //!< the same for the draft's cache; negative: as the target's
  std::int32_t ngram = 3;             //!< tokens of the longest n-gram that a drafter without a model looks for
  sampling_options target{};  //!< how texts are drawn: room for top-k and top-p is taken if these options use them
  //! how the draft model's rows are made: room for top-k and top-p is taken if these options use them
  sampling_options draft{.temperature = 1.0F};
  std::size_t bytes = 0;  //!< bytes that are available at most; 0: as many as are needed
};

}  // namespace espalier
