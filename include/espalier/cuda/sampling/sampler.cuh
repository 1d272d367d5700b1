// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/cuda/sampling/team_sampler.cuh"
#include "espalier/sampling/sampler.hpp"

namespace espalier::cuda {

namespace detail {

struct sampler_memory {
  team::memory team_memory;
  alignas(16) unsigned char of_sampler[16];  // [layout.bytes]
};

// The arrays to which sampler_kernel writes. Shapes: rows [places][n_nodes][vocab], row_of [places][n_nodes], found
// [places]
struct sampled_rows_memory {
  float* rows;
  std::int32_t* row_of;
  std::int32_t n_nodes;
  fault* found;
};

// Turns the logits of one pass into probabilities: team x of grid row y works for entry x of the list of lane y.
template <class LogitT>
ESPALIER_KERNEL __launch_bounds__(row_threads,
                                  1) void sampler_kernel(vocab_rows<LogitT> logits, sampling_options options,
                                                         team_sampler_layout layout, text_batch texts, node_list asked,
                                                         sampled_rows_memory out, row_origin from) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const std::int32_t entry = here.lane * asked.n + team::number();
  const node_id u = asked.of(here.place)[team::number()];
  if (u == no_node) return;
  const std::int32_t at = here.place * out.n_nodes + u;
  auto& memory = *reinterpret_cast<sampler_memory*>(shared_memory());
  team::turns turns;
  const team who(memory.team_memory, turns);
  team_sampler<LogitT> sampler(options, layout, who, memory.of_sampler);
  float* row = out.rows + static_cast<std::ptrdiff_t>(at) * logits.vocab;
  if (!sampler.probabilities(logits.at(entry), logits.vocab, row, out.found + here.place, from.numbered(u))) {
    // Writes zeros, so that nobody reads an older row here.
    for (std::int32_t i = static_cast<std::int32_t>(who.rank()); i < logits.vocab;
         i += static_cast<std::int32_t>(who.size()))
      row[i] = 0;
  }
  if (who.rank() == 0) out.row_of[at] = at;
  who.sync();  // other blocks may still read this block's memory
}

}  // namespace detail

//! Turns rows of logits into rows of probabilities by node, many in one launch: the device's espalier::sampler.
//!
//! LogitT is float, __half or __nv_bfloat16.
//!
//! Complexity  one launch; a cluster of eight blocks works on a row, one block if there are no clusters, or for a
//!             vocabulary of at most 8192 tokens; passes over the row as team_sampler. No synchronisation, no
//!             allocation
//! Law         the rows are team_sampler's
//! Errors      option_error as espalier::sampler and team_sampler_layout, and for rows of another vocabulary;
//!             cuda_error; a fault for a row that espalier::sampler refuses, which is filled with zeros
template <class LogitT>
class sampler {
 public:
  explicit sampler(sampling_options options = {}) : options_(require_options(options)) {}

  const sampling_options& options() const { return options_; }
  bool is_greedy() const { return options_.temperature == 0.0F; }

  //! Prepares for rows of this vocabulary on the present device; called before run().
  void reserve(std::int32_t, std::int32_t vocab) {
    tuning_ = detail::row_tuning_here(vocab);
    layout_ = team_sampler_layout::of(options_, vocab, tuning_.blocks);
    vocab_ = vocab;
  }

  //! Makes the row of node u from row i of its lane's logits, where u is entry i of the text's list `asked`, and sets
  //! row_of[u] to the index in `rows` of the row that was made. Entries that are no_node are skipped. A fault names the
  //! row `from`, with u as its index.
  //!
  //! Shapes      logits [lanes][asked.n][vocab]; rows [places][n_nodes][vocab]; row_of [places][n_nodes]; found
  //!             [places]
  //! Pre         no list has a node twice
  void run(vocab_rows<LogitT> logits, const text_batch& texts, node_list asked, float* rows, std::int32_t* row_of,
           std::int32_t n_nodes, fault* found, row_origin from, cudaStream_t stream) const {
    require_option("logits' vocabulary", logits.vocab, vocab_, vocab_);
    if (asked.n == 0) return;
    const std::size_t bytes = offsetof(detail::sampler_memory, of_sampler) + layout_.bytes;
    launch("sampler", detail::sampler_kernel<LogitT>, tuning_.shape(asked.n, bytes, texts.n), stream, logits, options_,
           layout_, texts, asked, {rows, row_of, n_nodes, found}, from);
  }

 private:
  sampling_options options_;
  detail::row_tuning tuning_{detail::row_threads, 1};
  team_sampler_layout layout_;
  std::int32_t vocab_ = 0;
};

}  // namespace espalier::cuda
