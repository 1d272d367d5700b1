// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "espalier/cuda/model/llama/array_pieces.cuh"
#include "espalier/cuda/model/parallel/parallel_options.cuh"
#include "espalier/cuda/model/parallel/rank_blocks.cuh"
#include "espalier/cuda/model/parallel/rank_vocabulary.cuh"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/parallel/rank_part.hpp"

namespace espalier::cuda::detail {

// What a pass of a transformer over ranks keeps on the rank's device. It begins as zeros: rows that no batch has
// written are computed with, too.
template <class NumberT, class LogitT>
struct rank_buffers {
  NumberT* normed = nullptr;       // [max_rows][hidden]
  NumberT* mlp_normed = nullptr;   // [max_rows][hidden], where the residual is parallel
  NumberT* projected = nullptr;    // [max_rows][own queries + 2 own kv_size]
  NumberT* wide = nullptr;         // [max_rows][gate, up][own intermediate]
  NumberT* blocks = nullptr;       // what attention and activation leave, rank after rank
  NumberT* whole = nullptr;        // [max_rows][that of all ranks], with rank_split::outputs
  float* stream = nullptr;         // [max_rows][hidden]
  float* embedded = nullptr;       // [ranks][embedding_choice::stride_of(max_rows)]
  float* hidden_blocks = nullptr;  // what goes back to the stream, rank after rank
  float* partial = nullptr;        // [max_rows][hidden]: what the rank's inputs add, with rank_split::sums
  float* parts = nullptr;          // to the own part of hidden, what each rank's inputs add
  LogitT* logits = nullptr;        // [max_rows][vocab]
  LogitT* logit_blocks = nullptr;  // rank after rank
  part_maximum* maxima = nullptr;  // [ranks][maxima_stride(max_rows)], with rank_logits::maxima

  rank_buffers(const model_config& config, const rank_part& part, const parallel_options& options, int ranks) {
    place(config, part, options, ranks);
    numbers_.allocate(), floats_.allocate(), logits_.allocate(), maxima_.allocate();
    place(config, part, options, ranks);
    numbers_.zero(nullptr), floats_.zero(nullptr), logits_.zero(nullptr), maxima_.zero(nullptr);
  }

  // Maxima from one rank's to the next, on 256 bytes.
  static std::int64_t maxima_stride(int n) { return (std::int64_t{n} + 31) / 32 * 32; }

 private:
  // Gives every part its place, or only counts where there is no memory yet.
  void place(const model_config& c, const rank_part& part, const parallel_options& options, int ranks) {
    const int n = options.max_rows, own_queries = part.queries(c).size(), gates = c.gated_mlp ? 2 : 1;
    const auto size = [&](int width) { return static_cast<std::size_t>(n) * static_cast<std::size_t>(width); };
    const auto all = [&](std::int64_t stride) { return static_cast<std::size_t>(stride * ranks); };
    const auto blocks_of = [&](auto* none, int columns, int granule) {
      return rank_blocks(none, {columns, granule, ranks}, n).numbers();
    };
    constexpr NumberT* number = nullptr;
    constexpr float* single = nullptr;
    constexpr LogitT* logit = nullptr;
    const bool sums = options.split == rank_split::sums;
    normed = numbers_.take(size(c.hidden_size));
    if (c.parallel_residual) mlp_normed = numbers_.take(size(c.hidden_size));
    projected = numbers_.take(size(own_queries + 2 * part.kv_size(c)));
    wide = numbers_.take(size(gates * part.intermediate.size()));
    blocks = numbers_.take((std::max)(blocks_of(number, c.query_size(), c.query_size() / c.n_kv_heads),
                                      blocks_of(number, c.intermediate_size, rank_part::granule)));
    if (!sums) whole = numbers_.take(size((std::max)(c.query_size(), c.intermediate_size)));
    stream = floats_.take(size(c.hidden_size));
    embedded = floats_.take(all(embedding_choice::stride_of(n, c.hidden_size)));
    const std::size_t between = blocks_of(single, c.hidden_size, rank_part::granule);
    hidden_blocks = floats_.take(between);
    if (sums) partial = floats_.take(size(c.hidden_size)), parts = floats_.take(between);
    logits = logits_.take(size(c.vocab_size));
    logit_blocks = logits_.take(blocks_of(logit, c.vocab_size, rank_part::granule));
    if (options.logits == rank_logits::maxima) maxima = maxima_.take(all(maxima_stride(n)));
  }

  array_pieces<NumberT> numbers_;
  array_pieces<float> floats_;
  array_pieces<LogitT> logits_;
  array_pieces<part_maximum> maxima_;
};

}  // namespace espalier::cuda::detail
