// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/drafter/block_diffusion.cu
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/model/llama/activate.cuh"
#include "espalier/cuda/model/llama/correction_memory.cuh"
#include "espalier/cuda/model/llama/matrix_products.cuh"
#include "espalier/cuda/model/llama/number.cuh"
#include "espalier/model/llama/block_draft_config.hpp"

namespace espalier::cuda::detail {

// The greatest markov_rank for which a thread block has memory.
inline constexpr int most_markov_rank = 4096;

// The weights of a Markov head on the device, as espalier::block_draft_weights has them on the host.
template <class NumberT>
struct markov_weights {
  NumberT* tokens = nullptr;         // [vocab_size][markov_rank] the embeddings of the tokens before
  NumberT* gate_of_path = nullptr;   // [markov_gates][markov_rank or 2 * markov_rank]
  float* gate_bias = nullptr;        // [markov_gates]
  NumberT* gate_of_state = nullptr;  // [markov_gates][hidden_size]
  NumberT* out = nullptr;            // [columns][markov_rank]
};

// The arguments of markov_vectors().
//
// Shapes: of_states [lanes][length][gates]: products of the rows' states; vectors [lanes][nodes.n][rank]
template <class NumberT>
struct markov_job {
  markov_weights<NumberT> weights;
  const float* of_states = nullptr;
  NumberT* vectors = nullptr;
  std::int32_t vocab = 0;
  std::int32_t rank = 0;
  std::int32_t gates = 0;
  std::int32_t length = 0;  // rows of a block
  bool is_recurrent = false;
};

inline constexpr int markov_threads = 128;

// Writes the vector of a Markov head after the path to each node of the lists: block (i, lane) works for entry i of a
// lane. The vector of an entry that is no_node is 0, that of a token outside the vocabulary NaN.
template <class NumberT>
ESPALIER_KERNEL void markov_vectors(markov_job<NumberT> job, text_batch texts, node_list nodes) {
  const text_in_batch here = texts.here();
  const auto entry = static_cast<std::int32_t>(blockIdx.x), first = static_cast<std::int32_t>(threadIdx.x);
  const node_id node = here.place < 0 ? no_node : nodes.of(here.place)[entry];
  const std::int32_t rank = job.rank;
  NumberT* const out = job.vectors + (std::int64_t{here.lane} * nodes.n + entry) * rank;
  if (node == no_node) {
    for (std::int32_t k = first; k < rank; k += markov_threads)
      out[k] = NumberT(0.0F);
    return;
  }
  // The unit's state and the token's embedding lie side by side, as a recurrent unit's gates read them.
  float* const state = reinterpret_cast<float*>(shared_memory());
  float *const token = state + rank, *const gates = token + rank;
  const auto read_token = [&](node_id of) {
    const token_id id = of == root_node ? here.text.tokens[here.text.state->size - 1] : here.tree.token[of];
    const bool known = id >= 0 && id < job.vocab;
    const NumberT* from = job.weights.tokens + std::int64_t{known ? id : 0} * rank;
    for (std::int32_t k = first; k < rank; k += markov_threads)
      token[k] = known ? static_cast<float>(from[k]) : NAN;
    __syncthreads();
  };
  // Writes the gates of the row at a depth, which read `inputs` numbers from `from` on.
  const auto compute_gates = [&](std::int32_t depth, const float* from, std::int32_t inputs) {
    const std::int32_t row = here.lane * job.length + (depth < job.length ? depth : job.length - 1);
    const float* const of_state = job.of_states + std::int64_t{row} * job.gates;
    for (std::int32_t g = first; g < job.gates; g += markov_threads) {
      const NumberT* const of_path = job.weights.gate_of_path + std::int64_t{g} * inputs;
      float sum = of_state[g] + job.weights.gate_bias[g];
      for (std::int32_t i = 0; i < inputs; ++i)
        sum += static_cast<float>(of_path[i]) * from[i];
      gates[g] = sum;
    }
    __syncthreads();
  };
  const std::int32_t depth = here.tree.depth[node];
  if (!job.is_recurrent) {
    read_token(node);
    if (job.gates > 0) compute_gates(depth, token, rank);
    for (std::int32_t k = first; k < rank; k += markov_threads)
      out[k] = NumberT(job.gates > 0 ? sigmoid(gates[k]) * token[k] : token[k]);
    return;
  }
  for (std::int32_t k = first; k < rank; k += markov_threads)
    state[k] = 0.0F;
  for (std::int32_t at = 0; at <= depth; ++at) {
    node_id ancestor = node;
    for (std::int32_t above = at; above < depth; ++above)
      ancestor = here.tree.parent[ancestor];
    read_token(ancestor);
    compute_gates(at, state, 2 * rank);
    for (std::int32_t k = first; k < rank; k += markov_threads) {
      const float keep = sigmoid(gates[k]);
      state[k] = keep * state[k] + (1.0F - keep) * tanhf(gates[rank + k]);
    }
    __syncthreads();
  }
  for (std::int32_t k = first; k < rank; k += markov_threads)
    out[k] = NumberT(tanhf(gates[2 * rank + k]));
}

// The Markov head of a block draft (DSpark) at work: it adds to a row of logits numbers that depend on the tokens
// before it, as espalier::detail::block_corrections does on the host.
//
// Complexity  read_states: a product with [markov_gates][hidden_size], if there are gates. after: two launches and a
//             product with [columns][markov_rank] over the nodes that are asked about; a recurrent unit goes through
//             the whole path to each of them. No synchronisation, no allocation after reserve
template <class NumberT, class LogitT>
class markov_head {
 public:
  markov_head(const block_draft_config& config, int columns, const markov_weights<NumberT>& weights, int max_texts)
      : columns_(columns), of_states_products_(data_type_of<NumberT>, false), products_(data_type_of<NumberT>, false) {
    job_.weights = weights;
    job_.vocab = config.vocab_size;
    job_.rank = config.markov_rank;
    job_.gates = config.markov_gates();
    job_.is_recurrent = config.markov == block_draft_config::markov_kind::rnn;
    if (job_.rank == 0) return;
    product_ = products_.add(columns, job_.rank, data_type_of<LogitT>, true);
    if (job_.gates == 0) return;
    of_states_product_ = of_states_products_.add(job_.gates, config.hidden_size, CUDA_R_32F, false);
    of_states_products_.plan_up_to(max_texts * config.block_length);
    of_states_ = device_array<float>(static_cast<std::size_t>(max_texts) *
                                     static_cast<std::size_t>(config.block_length * job_.gates));
    job_.of_states = of_states_.data();
  }

  bool is_there() const { return job_.rank > 0; }

  // Takes memory for calls of after() about at most max_nodes nodes of each of max_texts trees.
  void reserve(correction_memory<NumberT, LogitT>& memory, std::int32_t max_nodes, std::int32_t max_texts) {
    const std::int32_t rows = max_nodes * max_texts;
    products_.plan_up_to(rows);
    memory.vectors =
        device_array<NumberT>::filled(static_cast<std::size_t>(rows) * static_cast<std::size_t>(job_.rank), 0);
    memory.logits = device_array<LogitT>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns_));
  }

  // Reads the states of the rows of a block, of `length` rows a lane, whose products with the gates' matrix it keeps.
  //
  // Pre: `states` has room for as many rows as max_texts blocks have
  void read_states(const NumberT* states, std::int32_t n_lanes, std::int32_t length, cudaStream_t stream) {
    job_.length = length;
    if (job_.gates > 0) {
      of_states_products_.multiply(of_states_product_, job_.weights.gate_of_state, states, of_states_.data(),
                                   of_states_products_.planned(n_lanes * length), stream);
    }
  }

  // Returns the logits of the tokens after these nodes: the rows of `block` at their depths, corrected.
  //
  // Shapes: block [lanes][length][columns]; the result [lanes][nodes.n][columns], at the same address always
  vocab_rows<LogitT> after(const correction_memory<NumberT, LogitT>& memory, const text_batch& texts, node_list nodes,
                           const LogitT* block, cudaStream_t stream) const {
    const std::int32_t rows = texts.n * nodes.n;
    launch("copy_rows_of_nodes", copy_rows_of_nodes<LogitT>, {.grid = texts.lanes(nodes.n), .threads = 256}, stream,
           texts, nodes, block, job_.length, memory.logits.data(), columns_);
    markov_job<NumberT> job = job_;
    job.vectors = memory.vectors.data();
    const auto numbers = static_cast<std::size_t>(2 * job.rank + job.gates);
    launch("markov_vectors", markov_vectors<NumberT>,
           {.grid = texts.lanes(nodes.n), .threads = markov_threads, .shared_bytes = numbers * sizeof(float)}, stream,
           job, texts, nodes);
    products_.multiply(product_, job.weights.out, job.vectors, memory.logits.data(), products_.planned(rows), stream);
    return {memory.logits.data(), rows, columns_};
  }

 private:
  markov_job<NumberT> job_;
  std::int32_t columns_;
  matrix_products of_states_products_, products_;
  int of_states_product_ = 0, product_ = 0;
  device_array<float> of_states_;  // [max_texts][block_length][gates]
};

}  // namespace espalier::cuda::detail
