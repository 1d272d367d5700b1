// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/drafter/factorised.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/sampling/sampler.cuh"
#include "espalier/sampling/sampler.hpp"

namespace espalier::cuda::detail {

// Copies rows of columns to rows of tokens: thread block (i, lane) copies the row whose number is entry i of the list
// of the lane's text.
//
// Shapes: from [places][n_rows][columns]; tokens [columns]; to [places][n_rows][vocab], 0 for tokens without a column
template <class NodesT>
ESPALIER_KERNEL void widen_rows(text_batch texts, NodesT nodes, std::int32_t n_rows, const float* from,
                                std::int32_t columns, const token_id* tokens, float* to, std::int32_t vocab) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const node_id u = nodes.of(here.place)[blockIdx.x];
  if (u == no_node) return;
  const std::int64_t row = std::int64_t{here.place} * n_rows + u;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < columns; i += static_cast<std::int32_t>(blockDim.x))
    to[row * vocab + tokens[i]] = from[row * columns + i];
}

// The rows of probabilities that a drafter makes of a model's logits. They are over the whole vocabulary, even if the
// logits have columns for some tokens alone: then the other tokens stay 0, and are written once.
//
// LogitT is float, __half or __nv_bfloat16.
template <class LogitT>
class token_rows {
 public:
  explicit token_rows(sampling_options sampling) : sampler_(sampling) {}

  // Takes memory for n_rows rows of each of max_texts texts. tokens [columns] has the token of each column of the
  // logits; nullptr: columns are tokens.
  void reserve(std::int32_t n_rows, std::int32_t max_texts, std::int32_t vocab, std::int32_t columns,
               const token_id* tokens) {
    n_rows_ = n_rows, vocab_ = vocab, columns_ = columns, tokens_ = tokens;
    const std::size_t rows = static_cast<std::size_t>(max_texts) * static_cast<std::size_t>(n_rows);
    const std::size_t size = rows * static_cast<std::size_t>(vocab);
    rows_ = tokens == nullptr ? device_array<float>(size) : device_array<float>::filled(size, 0);
    if (tokens != nullptr) narrow_ = device_array<float>(rows * static_cast<std::size_t>(columns));
    sampler_.reserve(n_rows, columns);
  }

  // Makes row `rows[i]` of each text from row i of its logits, and notes in row_of that it is made.
  //
  // Shapes: logits [lanes][rows.n][columns]; row_of [places][n_rows]
  void make(vocab_rows<LogitT> logits, const text_batch& texts, node_list rows, std::int32_t* row_of, fault* found,
            row_origin from, cudaStream_t stream) {
    float* const to = tokens_ != nullptr ? narrow_.data() : rows_.data();
    sampler_.run(logits, texts, rows, to, row_of, n_rows_, found, from, stream);
    if (tokens_ == nullptr) return;
    launch("widen_rows", widen_rows<node_list>, {.grid = texts.lanes(rows.n), .threads = 256}, stream, texts, rows,
           n_rows_, narrow_.data(), columns_, tokens_, rows_.data(), vocab_);
  }

  // All rows: [places][n_rows][vocab].
  vocab_rows<float> all() const {
    return {rows_.data(), vocab_ > 0 ? static_cast<std::int32_t>(rows_.size() / static_cast<std::size_t>(vocab_)) : 0,
            vocab_};
  }

 private:
  sampler<LogitT> sampler_;
  std::int32_t n_rows_ = 0;
  std::int32_t vocab_ = 0;
  std::int32_t columns_ = 0;
  const token_id* tokens_ = nullptr;
  device_array<float> rows_;    // [places][n_rows][vocab]
  device_array<float> narrow_;  // [places][n_rows][columns], if columns are not tokens
};

}  // namespace espalier::cuda::detail
