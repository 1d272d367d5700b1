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
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/model/llama/activate.cuh"
#include "espalier/cuda/model/llama/correction_memory.cuh"
#include "espalier/cuda/model/llama/matrix_products.cuh"
#include "espalier/cuda/model/llama/normalise.cuh"
#include "espalier/cuda/model/llama/number.cuh"
#include "espalier/model/llama/block_draft_config.hpp"

namespace espalier::cuda::detail {

// The weights of a refiner on the device, as espalier::block_draft_weights has them on the host, but with `gate` and
// `up` in one matrix.
template <class NumberT>
struct refiner_weights {
  NumberT* tokens = nullptr;    // [vocab_size][refiner_rank]
  float* mixer = nullptr;       // [rows][rows][refiner_rank]
  NumberT* of_state = nullptr;  // [refiner_rank][hidden_size]
  NumberT* of_mean = nullptr;   // [refiner_rank][hidden_size]
  NumberT* in_state = nullptr;  // [refiner_rank][refiner_rank]
  NumberT* in_mean = nullptr;   // likewise
  NumberT* in_token = nullptr;  // likewise
  NumberT* widen = nullptr;     // [gate, up][refiner_inner][refiner_rank]
  NumberT* down = nullptr;      // [refiner_rank][refiner_inner]
  NumberT* out = nullptr;       // [columns][refiner_rank]
};

// The arguments of the refiner's kernels. Rows of a block are counted with the pending token's.
//
// Shapes: mixer [most_rows][most_rows][rank]; of_states [lanes][rows][rank]; of_means [lanes][rank]; embeddings and
// of_tokens [lanes][nodes.n][rows][rank]; vectors [lanes][nodes.n][rank]
template <class NumberT>
struct refiner_job {
  const NumberT* tokens = nullptr;
  const float* mixer = nullptr;
  const float* of_states = nullptr;
  const float* of_means = nullptr;
  NumberT* embeddings = nullptr;
  const float* of_tokens = nullptr;
  NumberT* vectors = nullptr;
  std::int32_t vocab = 0;
  std::int32_t rank = 0;
  std::int32_t most_rows = 0;  // rows of the longest block
  std::int32_t rows = 0;       // rows of the last block
  std::int32_t of_root = 0;    // the row that the root's token comes before

  // Returns the row of a node at this depth.
  __device__ std::int32_t row_at(std::int32_t depth) const {
    return depth + of_root < rows ? depth + of_root : rows - 1;
  }
};

inline constexpr int refiner_threads = 128;

// Writes the mean of the rows of each lane's block. A thread computes a column.
//
// Shapes: states [lanes][rows][width]; means [lanes][width]
template <class NumberT>
ESPALIER_KERNEL void average_rows(const NumberT* states, NumberT* means, std::int32_t rows, std::int32_t width) {
  const auto i = static_cast<std::int32_t>(blockIdx.x * refiner_threads + threadIdx.x);
  if (i >= width) return;
  const std::int64_t lane = blockIdx.y;
  float sum = 0.0F;
  for (std::int32_t row = 0; row < rows; ++row)
    sum += static_cast<float>(states[(lane * rows + row) * width + i]);
  means[lane * width + i] = NumberT(sum / static_cast<float>(rows));
}

// Writes, for each node of the lists, the embeddings of the tokens before the rows of its path: block (i, lane) works
// for entry i of a lane. The embedding of a token outside the vocabulary is NaN.
template <class NumberT>
ESPALIER_KERNEL void embed_paths(refiner_job<NumberT> job, text_batch texts, node_list nodes) {
  const text_in_batch here = texts.here();
  const auto entry = static_cast<std::int32_t>(blockIdx.x);
  const node_id node = here.place < 0 ? no_node : nodes.of(here.place)[entry];
  if (node == no_node) return;
  NumberT* const to = job.embeddings + (std::int64_t{here.lane} * nodes.n + entry) * job.rows * job.rank;
  const auto embed = [&](std::int32_t row, token_id id) {
    const bool known = id >= 0 && id < job.vocab;
    const NumberT* const from = job.tokens + std::int64_t{known ? id : 0} * job.rank;
    for (auto k = static_cast<std::int32_t>(threadIdx.x); k < job.rank; k += refiner_threads)
      to[row * job.rank + k] = known ? from[k] : NumberT(NAN);
  };
  const std::int32_t pending = here.text.state->size - 1;
  const auto token_of = [&](node_id u) { return u == root_node ? here.text.tokens[pending] : here.tree.token[u]; };
  const std::int32_t last = job.row_at(here.tree.depth[node]);
  embed(last, token_of(node));
  for (node_id u = node; u != root_node;) {
    u = here.tree.parent[u];
    const std::int32_t row = here.tree.depth[u] + job.of_root;
    if (row < last) embed(row, token_of(u));
  }
  if (job.of_root == 1 && last > 0) embed(0, here.text.tokens[pending > 0 ? pending - 1 : 0]);
}

// Writes the mixed vector of each node of the lists, 0 for an entry that is no_node: block (i, lane) works for entry i
// of a lane.
template <class NumberT>
ESPALIER_KERNEL void mix_paths(refiner_job<NumberT> job, text_batch texts, node_list nodes) {
  const text_in_batch here = texts.here();
  const auto entry = static_cast<std::int32_t>(blockIdx.x);
  const node_id node = here.place < 0 ? no_node : nodes.of(here.place)[entry];
  const std::int64_t number = std::int64_t{here.lane} * nodes.n + entry;
  const std::int32_t last = node == no_node ? 0 : job.row_at(here.tree.depth[node]);
  const float* const factors = job.mixer + std::int64_t{last} * job.most_rows * job.rank;
  for (auto k = static_cast<std::int32_t>(threadIdx.x); k < job.rank; k += refiner_threads) {
    const float of_mean = job.of_means[here.lane * job.rank + k];
    const auto vector = [&](std::int32_t row) {
      return job.of_states[(here.lane * job.rows + row) * job.rank + k] + of_mean +
             job.of_tokens[(number * job.rows + row) * job.rank + k];
    };
    float sum = 0.0F;
    if (node != no_node) {
      sum = vector(last);
      for (std::int32_t row = 0; row <= last; ++row)
        sum += factors[row * job.rank + k] * vector(row);
    }
    job.vectors[number * job.rank + k] = NumberT(sum);
  }
}

// The refiner of a block draft (XPress) at work: it adds to a row of logits numbers that depend on all tokens before
// it, as espalier::detail::block_refiner does on the host. The vectors of a path's rows are computed anew for each
// node.
//
// Complexity  read_stream: two launches, and products of a block's rows with [refiner_rank][hidden_size] and
//             [refiner_rank][refiner_rank], and of their means likewise. after: four launches and, over the nodes that
//             are asked about, products with the MLP's matrices and [columns][refiner_rank]; over the rows of their
//             paths, one with [refiner_rank][refiner_rank]. No synchronisation, no allocation after reserve
template <class NumberT, class LogitT>
class block_refiner {
 public:
  // Pre: the config has a refiner
  block_refiner(const block_draft_config& config, int columns, const refiner_weights<NumberT>& weights, int max_texts)
      : weights_(weights),
        width_(config.hidden_size),
        inner_(config.refiner_inner),
        columns_(columns),
        products_(data_type_of<NumberT>, false) {
    const int rank = config.refiner_rank;
    job_.tokens = weights.tokens, job_.mixer = weights.mixer;
    job_.vocab = config.vocab_size;
    job_.rank = rank;
    job_.most_rows = config.rows_of(config.block_length);
    job_.of_root = config.from_pending ? 0 : 1;
    constexpr cudaDataType_t numbers = data_type_of<NumberT>;
    narrow_ = products_.add(rank, width_, numbers, false);
    enter_ = products_.add(rank, rank, CUDA_R_32F, false);
    widen_ = products_.add(2 * inner_, rank, numbers, false);
    down_ = products_.add(rank, inner_, numbers, true);
    out_ = products_.add(columns, rank, data_type_of<LogitT>, true);
    const int rows = max_texts * job_.most_rows;
    products_.plan_up_to(rows);
    for (device_array<NumberT>* states : {&states_, &means_})
      *states = zeros<NumberT>(rows, width_);
    for (device_array<NumberT>* narrow : {&narrow_states_, &narrow_means_})
      *narrow = zeros<NumberT>(rows, rank);
    of_states_ = zeros<float>(rows, rank), of_means_ = zeros<float>(rows, rank);
    job_.of_states = of_states_.data(), job_.of_means = of_means_.data();
  }

  // Takes memory for calls of after() about at most max_nodes nodes of each of max_texts trees.
  void reserve(correction_memory<NumberT, LogitT>& memory, std::int32_t max_nodes, std::int32_t max_texts) {
    const std::int32_t nodes = max_nodes * max_texts, rows = nodes * job_.most_rows;
    products_.plan_up_to(nodes);
    products_.plan_up_to(rows);
    memory.embeddings = zeros<NumberT>(rows, job_.rank);
    memory.of_tokens = zeros<float>(rows, job_.rank);
    memory.vectors = zeros<NumberT>(nodes, job_.rank);
    memory.widened = zeros<NumberT>(nodes, 2 * inner_);
    memory.activated = zeros<NumberT>(nodes, inner_);
    memory.logits = device_array<LogitT>(size(nodes, columns_));
  }

  // Reads the stream of all rows of the lanes' blocks, of `rows` rows each, after the last layer.
  //
  // Shapes: residual [lanes][rows][hidden_size]; final_norm [hidden_size]
  void read_stream(float* residual, const float* final_norm, float epsilon, std::int32_t n_lanes, std::int32_t rows,
                   cudaStream_t stream) {
    job_.rows = rows;
    auto job = normalise_job<NumberT>::of(residual, width_, epsilon);
    job.norms[0] = {final_norm, nullptr, states_.data()};
    normalise(job, n_lanes * rows, stream);
    const auto of_width = static_cast<unsigned>((width_ + refiner_threads - 1) / refiner_threads);
    launch("average_rows", average_rows<NumberT>,
           {.grid = dim3(of_width, static_cast<unsigned>(n_lanes)), .threads = refiner_threads}, stream, states_.data(),
           means_.data(), rows, width_);
    multiply(narrow_, weights_.of_state, states_.data(), narrow_states_.data(), n_lanes * rows, stream);
    multiply(enter_, weights_.in_state, narrow_states_.data(), of_states_.data(), n_lanes * rows, stream);
    multiply(narrow_, weights_.of_mean, means_.data(), narrow_means_.data(), n_lanes, stream);
    multiply(enter_, weights_.in_mean, narrow_means_.data(), of_means_.data(), n_lanes, stream);
  }

  // Returns the logits of the tokens after these nodes: the rows of `block` at their depths, corrected.
  //
  // Shapes: block [lanes][length][columns]; the result [lanes][nodes.n][columns], at the same address always
  vocab_rows<LogitT> after(const correction_memory<NumberT, LogitT>& memory, const text_batch& texts, node_list nodes,
                           const LogitT* block, cudaStream_t stream) const {
    const std::int32_t n = texts.n * nodes.n;
    launch("copy_rows_of_nodes", copy_rows_of_nodes<LogitT>, {.grid = texts.lanes(nodes.n), .threads = 256}, stream,
           texts, nodes, block, job_.rows - job_.of_root, memory.logits.data(), columns_);
    refiner_job<NumberT> job = job_;
    job.embeddings = memory.embeddings.data(), job.of_tokens = memory.of_tokens.data();
    job.vectors = memory.vectors.data();
    launch("embed_paths", embed_paths<NumberT>, {.grid = texts.lanes(nodes.n), .threads = refiner_threads}, stream, job,
           texts, nodes);
    multiply(enter_, weights_.in_token, job.embeddings, memory.of_tokens.data(), n * job.rows, stream);
    launch("mix_paths", mix_paths<NumberT>, {.grid = texts.lanes(nodes.n), .threads = refiner_threads}, stream, job,
           texts, nodes);
    multiply(widen_, weights_.widen, job.vectors, memory.widened.data(), n, stream);
    activate_job<NumberT> mlp;
    mlp.in = memory.widened.data(), mlp.out = memory.activated.data(), mlp.width = inner_;
    activate(mlp, n, stream);
    multiply(down_, weights_.down, mlp.out, job.vectors, n, stream);
    multiply(out_, weights_.out, job.vectors, memory.logits.data(), n, stream);
    return {memory.logits.data(), n, columns_};
  }

 private:
  static std::size_t size(int rows, int width) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(width);
  }

  // Products are computed for a planned number of rows, so there may be rows that nobody has written.
  template <class ElementT>
  static device_array<ElementT> zeros(int rows, int width) {
    return device_array<ElementT>::filled(size(rows, width), 0);
  }

  void multiply(int product, const NumberT* matrix, const NumberT* x, void* y, int rows, cudaStream_t stream) const {
    products_.multiply(product, matrix, x, y, products_.planned(rows), stream);
  }

  refiner_weights<NumberT> weights_;
  refiner_job<NumberT> job_;
  int width_, inner_, columns_;
  matrix_products products_;
  int narrow_ = 0, enter_ = 0, widen_ = 0, down_ = 0, out_ = 0;
  // [max_texts * most_rows][hidden_size or rank] of the last blocks, means by lane
  device_array<NumberT> states_, means_, narrow_states_, narrow_means_;
  device_array<float> of_states_, of_means_;
};

}  // namespace espalier::cuda::detail
