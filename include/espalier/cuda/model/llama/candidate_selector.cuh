// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/drafter/block_diffusion.cu
#pragma once

#include <cuda_runtime.h>

#include <cmath>
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
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/model/llama/correction_memory.cuh"
#include "espalier/cuda/model/llama/matrix_products.cuh"
#include "espalier/cuda/model/llama/number.cuh"
#include "espalier/cuda/sampling/top_tokens.cuh"
#include "espalier/model/llama/block_draft_config.hpp"

namespace espalier::cuda::detail {

// The weights of a selector on the device, as espalier::block_draft_weights has them on the host.
template <class NumberT>
struct candidate_weights {
  NumberT* before = nullptr;    // [vocab_size][selector_rank]
  NumberT* after = nullptr;     // [vocab_size][selector_rank]
  NumberT* of_state = nullptr;  // [selector_rank][hidden_size]
};

// The arguments of select_rows().
//
// Shapes: of_states [lanes][length][rank]; block [lanes][length][vocab]; candidates [places][length][n_candidates];
// counts [places][length]; to [lanes][nodes.n][vocab]
template <class NumberT, class LogitT>
struct selector_job {
  candidate_weights<NumberT> weights;
  const float* of_states = nullptr;
  const LogitT* block = nullptr;
  const token_id* candidates = nullptr;
  const std::int32_t* counts = nullptr;
  LogitT* to = nullptr;
  std::int32_t vocab = 0;
  std::int32_t rank = 0;
  std::int32_t n_candidates = 0;
  std::int32_t length = 0;  // rows of a block
};

inline constexpr int candidate_threads = 256;

// Writes the scores after the token of each node of the lists: block (i, lane) works for entry i of a lane. A candidate
// of the row of the node's depth has its score, every other token minus infinity.
template <class NumberT, class LogitT>
ESPALIER_KERNEL void select_rows(selector_job<NumberT, LogitT> job, text_batch texts, node_list nodes) {
  const text_in_batch here = texts.here();
  const auto entry = static_cast<std::int32_t>(blockIdx.x), thread = static_cast<std::int32_t>(threadIdx.x);
  const node_id node = here.place < 0 ? no_node : nodes.of(here.place)[entry];
  if (node == no_node) return;
  LogitT* const to = job.to + (std::int64_t{here.lane} * nodes.n + entry) * job.vocab;
  for (std::int32_t i = thread; i < job.vocab; i += candidate_threads)
    to[i] = LogitT(-INFINITY);
  __syncthreads();
  const token_id id = node == root_node ? here.text.tokens[here.text.state->size - 1] : here.tree.token[node];
  const bool known = id >= 0 && id < job.vocab;
  const std::int32_t depth = here.tree.depth[node], row = depth < job.length ? depth : job.length - 1;
  const std::int64_t of_lane = std::int64_t{here.lane} * job.length + row,
                     of_place = std::int64_t{here.place} * job.length + row;
  const NumberT* const before = job.weights.before + std::int64_t{known ? id : 0} * job.rank;
  const float* const state = job.of_states + of_lane * job.rank;
  const std::int32_t lane = thread % 32;
  for (std::int32_t c = thread / 32; c < job.counts[of_place]; c += candidate_threads / 32) {
    const token_id candidate = job.candidates[of_place * job.n_candidates + c];
    const NumberT* const after = job.weights.after + std::int64_t{candidate} * job.rank;
    float sum = 0.0F;
    for (std::int32_t k = lane; k < job.rank; k += 32)
      sum += static_cast<float>(before[k]) * state[k] * static_cast<float>(after[k]);
    for (int step = 16; step > 0; step /= 2)
      sum += __shfl_xor_sync(0xFFFFFFFFU, sum, step);
    const float logit = static_cast<float>(job.block[of_lane * job.vocab + candidate]);
    if (lane == 0) to[candidate] = LogitT(known ? logit + sum : NAN);
  }
}

// The selector of a block draft (DFlash2) at work: it scores the candidates of each row, its most probable tokens, by
// the token before. Twin of espalier::detail::block_corrections.
//
// Complexity  read_states: a product with [selector_rank][hidden_size], and a look at each row of the block. after: one
//             launch, which writes a row for each node that is asked about. No synchronisation, no allocation after
//             reserve
// Law         a row with a NaN has no candidates, and a reader of the result finds that no token can be drawn
template <class NumberT, class LogitT>
class candidate_selector {
 public:
  static constexpr int max_candidates = top_tokens<LogitT>::max_k;

  candidate_selector(const block_draft_config& config, const candidate_weights<NumberT>& weights, int max_texts)
      : products_(data_type_of<NumberT>, false) {
    job_.weights = weights;
    job_.vocab = config.vocab_size;
    job_.rank = config.selector_rank;
    job_.n_candidates = config.selector_candidates;
    if (job_.rank == 0) return;
    product_ = products_.add(job_.rank, config.hidden_size, CUDA_R_32F, false);
    products_.plan_up_to(max_texts * config.block_length);
    const auto rows = static_cast<std::size_t>(max_texts) * static_cast<std::size_t>(config.block_length);
    of_states_ = device_array<float>(rows * static_cast<std::size_t>(job_.rank));
    candidates_ = device_array<token_id>(rows * static_cast<std::size_t>(job_.n_candidates));
    log_probs_ = device_array<float>(candidates_.size());
    counts_ = device_array<std::int32_t>(rows);
    found_ = device_array<fault>(static_cast<std::size_t>(max_texts));
    job_.of_states = of_states_.data(), job_.candidates = candidates_.data(), job_.counts = counts_.data();
  }

  bool is_there() const { return job_.rank > 0; }

  // Takes memory for calls of after() about at most max_nodes nodes of each of max_texts trees.
  void reserve(correction_memory<NumberT, LogitT>& memory, std::int32_t max_nodes, std::int32_t max_texts) const {
    memory.logits = device_array<LogitT>(static_cast<std::size_t>(max_nodes) * static_cast<std::size_t>(max_texts) *
                                         static_cast<std::size_t>(job_.vocab));
  }

  // Reads the states of the rows of a block, of `length` rows a lane, and finds the candidates of each row.
  //
  // Shapes: block [lanes][length][vocab]. Pre: `states` has room for as many rows as max_texts blocks have
  void read_block(const NumberT* states, const LogitT* block, const text_batch& texts, std::int32_t length,
                  cudaStream_t stream) {
    if (!is_there()) return;
    job_.length = length;
    job_.block = block;
    products_.multiply(product_, job_.weights.of_state, states, of_states_.data(), products_.planned(texts.n * length),
                       stream);
    const token_lists lists{
        .tokens = candidates_.data(), .log_probs = log_probs_.data(), .counts = counts_.data(), .k = job_.n_candidates};
    const block_rows<LogitT> rows{{block, texts.n * length, job_.vocab}, length, found_.data(), nullptr};
    top_tokens<LogitT>(job_.vocab).of_blocks(texts, rows, length, lists, row_origin::of_block(0), stream);
  }

  // Returns the scores after these nodes: [lanes][nodes.n][vocab], at the same address always.
  vocab_rows<LogitT> after(const correction_memory<NumberT, LogitT>& memory, const text_batch& texts, node_list nodes,
                           cudaStream_t stream) const {
    selector_job<NumberT, LogitT> job = job_;
    job.to = memory.logits.data();
    launch("select_rows", select_rows<NumberT, LogitT>, {.grid = texts.lanes(nodes.n), .threads = candidate_threads},
           stream, job, texts, nodes);
    return {job.to, texts.n * nodes.n, job.vocab};
  }

 private:
  selector_job<NumberT, LogitT> job_;
  matrix_products products_;
  int product_ = 0;
  device_array<float> of_states_;      // [max_texts][block_length][rank]
  device_array<token_id> candidates_;  // [max_texts][block_length][n_candidates]
  device_array<float> log_probs_;      // likewise; nobody reads it
  device_array<std::int32_t> counts_;  // [max_texts][block_length]
  device_array<fault> found_;          // [max_texts]; nobody reads it
};

}  // namespace espalier::cuda::detail
