// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/core/sampling_options.hpp"

namespace espalier {

//! What a static_decoder has room for. Its parts tell by it, at compile time, how much memory they will take.
struct static_capacity {
  std::int32_t nodes = 0;       //!< drafted tokens of a round
  std::int32_t context = 0;     //!< tokens of a text, and rows of each cache
  std::int32_t vocabulary = 0;  //!< tokens that there are
  std::int32_t chunk = 16;      //!< tokens of the prompt that one pass takes: decoder_options::prefill_chunk
  //! Floats of a token's keys in a cache that holds them, all layers; its values are as many.
  std::int32_t cache_row = 0;
  std::int32_t draft_cache_row = -1;  //!< of the draft's cache; negative: as many as the target's
  std::int32_t ngram = 3;             //!< tokens of the longest n-gram that a drafter without a model looks for
  sampling_options target{};          //!< of texts: room is taken for top-k and top-p where they are used here
  sampling_options draft{.temperature = 1.0F};  //!< of the draft model, the same
  std::size_t bytes = 0;                        //!< memory that there is at most; 0: as much as is needed
};

}  // namespace espalier
