// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/core/tree_compile.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"

namespace espalier::cuda {

//! The length of a text so far, its limit, and the key of its random numbers.
struct text_state {
  std::int32_t size;  //!< number of tokens; the last one is pending: its row is not in the target's cache
  std::int32_t end;   //!< number of tokens that the text may reach; once it has them, rounds commit nothing
  std::uint32_t stream = 0;
  std::uint64_t seed = 0;
};

//! The text of one sequence, in the memory of the device. Trivially copyable, passed by value into kernels.
//!
//! Shapes      tokens [capacity + 1]; state [1]
//! Law         between rounds the target's cache holds state->size - 1 rows, since commits leave no gaps between rows
struct text_view {
  token_id* tokens = nullptr;
  text_state* state = nullptr;
  std::int32_t capacity = 0;  //!< number of tokens that the text may have
};

//! Returns the context length that launches are made for if a text may reach n tokens: the next power of two from 512
//! on, but at most the capacity. One graph serves all texts of a bucket.
inline std::int32_t context_bucket(std::int32_t n, std::int32_t capacity) {
  std::int32_t bucket = 512;
  while (bucket < n && bucket < capacity)
    bucket *= 2;
  return bucket < capacity ? bucket : capacity;
}

namespace detail {

// Returns the tree that lies `words` 32-bit words further in the same memory.
ESPALIER_HOST_DEVICE inline tree_writer moved(tree_writer tree, std::ptrdiff_t words) {
  tree.token += words;
  tree.parent += words;
  tree.depth += words;
  tree.log_prob += words;
  tree.path_log_prob += words;
  tree.first_draw += words;
  tree.last_draw += words;
  tree.next_draw += words;
  tree.drawn_node += words;
  tree.size = reinterpret_cast<tree_size*>(reinterpret_cast<std::int32_t*>(tree.size) + words);
  return tree;
}

}  // namespace detail

//! One text of a launch, as kernels see it: its tree of this round and its tokens, with the indices of its data in
//! other arrays. `tree` and `text` are empty if the lane is.
struct text_in_batch {
  std::int32_t lane = 0;   //!< index of the text in this round; row `lane` of the blocks of a launch works for it
  std::int32_t place = 0;  //!< index of the text in arrays that last from round to round; -1: the lane is empty
  tree_writer tree;
  text_view text;

  //! The random numbers of the text's present round. Pre: the lane is not empty.
  ESPALIER_HOST_DEVICE philox_chance chance() const {
    return {text.state->seed, text.state->stream, static_cast<std::uint32_t>(text.state->size)};
  }
};

//! The texts of a round and their trees, in the memory of the device. Trivially copyable, passed by value into kernels.
//! A launch has a row of blocks for each lane; block (x, y) works for lane y.
//!
//! A lane is a text that takes part in the round. Its place is the index of the text in the arrays; with place_of, the
//! device alone knows it. If a launch is made for more texts than there are, the last lanes are empty.
//!
//! Shapes      place_of [n]; arrays by place: trees at equal distances, tokens [places][texts.capacity + 1], states
//!             [places]
struct text_batch {
  std::int32_t n = 1;                      //!< number of lanes that launches are made for
  std::int32_t max_context = 0;            //!< number of tokens that a text may reach in this round
  std::int32_t first_sequence = 0;         //!< sequence of the cache that belongs to place 0
  const std::int32_t* place_of = nullptr;  //!< the place of each lane; nullptr: lane i has place i
  tree_writer trees;                       //!< the tree of place 0
  std::ptrdiff_t tree_words = 0;           //!< distance from one tree to the next, in 32-bit words
  text_view texts;                         //!< the text of place 0

  //! A batch of one text, which has place 0.
  static text_batch of(const tree_writer& tree, const text_view& text, std::int32_t max_context = 0,
                       std::int32_t sequence = 0) {
    text_batch batch;
    batch.max_context = max_context;
    batch.trees = tree;
    batch.texts = text;
    batch.first_sequence = sequence;
    return batch;
  }

  //! Returns these texts with the sequences of another cache, in which place 0 has sequence `first`.
  text_batch in_sequences_from(std::int32_t first) const {
    text_batch other = *this;
    other.first_sequence = first;
    return other;
  }

  //! The grid of a launch that has `blocks` thread blocks for each lane.
  dim3 lanes(std::int32_t blocks = 1) const { return {static_cast<unsigned>(blocks), static_cast<unsigned>(n), 1}; }

  ESPALIER_HOST_DEVICE text_view text(std::int32_t place) const {
    return {texts.tokens + static_cast<std::ptrdiff_t>(place) * (texts.capacity + 1), texts.state + place,
            texts.capacity};
  }
  ESPALIER_HOST_DEVICE tree_writer tree(std::int32_t place) const { return detail::moved(trees, place * tree_words); }
  ESPALIER_HOST_DEVICE text_in_batch at(std::int32_t lane) const {
    const std::int32_t place = place_of == nullptr ? lane : place_of[lane];
    if (place < 0) return {lane, place, {}, {}};
    return {lane, place, tree(place), text(place)};
  }
  //! The text that this thread block works for. Called in kernels.
  __device__ text_in_batch here() const { return at(static_cast<std::int32_t>(blockIdx.y)); }
};

}  // namespace espalier::cuda
