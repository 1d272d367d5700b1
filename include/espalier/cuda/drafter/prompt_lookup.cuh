// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/drafter/prompt_lookup.hpp"

namespace espalier::cuda {

namespace detail {

inline constexpr unsigned look_up_threads = 1024;

struct look_up_memory {
  std::uint32_t best[look_up_threads / 32];
};

// A match of the last tokens of a text with earlier tokens, as a number made of the match's length and the position of
// its last earlier token. The number is larger if more tokens match or, among matches of equal length, if the position
// is later; 0 if there is no match.
struct earlier_match {
  static constexpr int place_bits = 20;
  static_assert(1 << place_bits == option_of(&prompt_lookup_options::capacity).high());

  __device__ static std::uint32_t of(std::int32_t length, std::int32_t last) {
    return static_cast<std::uint32_t>(length) << place_bits | static_cast<std::uint32_t>(last);
  }
  __device__ static std::int32_t last(std::uint32_t match) {
    return static_cast<std::int32_t>(match & ((1U << place_bits) - 1));
  }
};

// Finds the run of each text: the tokens that follow its best earlier match. A block works for a lane, and each thread
// looks at several earlier positions. Shapes: tokens [places][max], n [places]
template <class OptionsT>
ESPALIER_KERNEL void __launch_bounds__(look_up_threads)
    look_up(text_batch texts, OptionsT options, token_id* tokens, std::int32_t* n, std::int32_t max) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  auto& memory = *reinterpret_cast<look_up_memory*>(shared_memory());
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const token_id* const text = here.text.tokens;
  const std::int32_t size = here.text.state->size, left = here.tree.left(max);
  std::uint32_t best = 0;
  // From late positions to early ones: the first match of max_ngram tokens that a thread finds is its best.
  for (std::int32_t last = size - 2 - thread; left > 0 && last >= 0; last -= static_cast<std::int32_t>(blockDim.x)) {
    const std::int32_t most = options.max_ngram <= last ? options.max_ngram : last + 1;
    std::int32_t length = 0;
    while (length < most && text[last - length] == text[size - 1 - length])
      ++length;
    if (length < options.min_ngram) continue;
    const std::uint32_t match = earlier_match::of(length, last);
    best = match > best ? match : best;
    if (length == options.max_ngram) break;
  }
  best = __reduce_max_sync(0xFFFFFFFFU, best);
  if (thread % 32 == 0) memory.best[thread / 32] = best;
  __syncthreads();
  best = __reduce_max_sync(0xFFFFFFFFU, memory.best[thread % 32]);
  const std::int32_t n_found = best > 0 ? left : 0;
  const std::int32_t first = earlier_match::last(best) + 1, ahead = size - first;
  // A run that reaches the end of the text goes on with its own tokens.
  for (std::int32_t i = thread; i < n_found; i += static_cast<std::int32_t>(blockDim.x))
    tokens[static_cast<std::ptrdiff_t>(here.place) * max + i] = text[first + i % ahead];
  if (thread == 0) n[here.place] = n_found;
}

}  // namespace detail

//! espalier::prompt_lookup on the device: the same runs. It keeps nothing of a text, and looks through the whole text
//! each time.
//!
//! Complexity  propose_runs: one launch of a block for each lane, which compares the end of the text with each earlier
//!             position: O(size * max_ngram). No synchronisation, no allocation
//! Law         SequenceDrafter's; as espalier::prompt_lookup
//! Errors      option_error for options out of range
//! Source      as espalier::prompt_lookup
class prompt_lookup {
 public:
  explicit prompt_lookup(prompt_lookup_options options = {}) : options_(require_options(options)) {
    static_assert(detail::look_up_threads == 32 * 32, "a warp has the best of each");
  }

  std::int32_t capacity() const { return options_.capacity; }

  void reserve(std::int32_t max_nodes, std::int32_t max_texts, fault*) {
    max_ = max_nodes;
    n_ = device_array<std::int32_t>(static_cast<std::size_t>(max_texts));
    tokens_ = device_array<token_id>(n_.size() * static_cast<std::size_t>(max_nodes));
  }

  void begin(std::int32_t, text_view, std::span<const token_id>, std::int32_t, cudaStream_t) const {}
  void ensure(std::int32_t, std::int32_t, cudaStream_t) const {}
  void commit(const text_batch&, path_view, cudaStream_t) const {}

  //! The runs of all texts, no longer than their trees have room for.
  text_runs propose_runs(const text_batch& texts, cudaStream_t stream) const {
    launch("look_up", detail::look_up<prompt_lookup_options>,
           {.grid = texts.lanes(), .threads = detail::look_up_threads, .shared_bytes = sizeof(detail::look_up_memory)},
           stream, texts, options_, tokens_.data(), n_.data(), max_);
    return {tokens_.data(), n_.data(), max_};
  }

 private:
  prompt_lookup_options options_;
  std::int32_t max_ = 0;           // tokens of a run, at most
  device_array<token_id> tokens_;  // [texts][max]
  device_array<std::int32_t> n_;   // [texts]
};

static_assert(SequenceDrafter<prompt_lookup>);

}  // namespace espalier::cuda
