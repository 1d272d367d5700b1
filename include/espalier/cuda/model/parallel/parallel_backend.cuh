// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/cuda/model/attention/tree_attention.cuh"
#include "espalier/cuda/model/llama/activate.cuh"
#include "espalier/cuda/model/llama/embed.cuh"
#include "espalier/cuda/model/llama/matrix_products.cuh"
#include "espalier/cuda/model/llama/normalise.cuh"
#include "espalier/cuda/model/llama/number.cuh"
#include "espalier/cuda/model/llama/rotate.cuh"
#include "espalier/cuda/model/parallel/communicator.cuh"
#include "espalier/cuda/model/parallel/parallel_options.cuh"
#include "espalier/cuda/model/parallel/rank_blocks.cuh"
#include "espalier/cuda/model/parallel/rank_buffers.cuh"
#include "espalier/cuda/model/parallel/rank_vocabulary.cuh"
#include "espalier/cuda/model/parallel/rank_weights.cuh"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "espalier/model/parallel/communicator.hpp"
#include "espalier/model/parallel/rank_part.hpp"

namespace espalier::cuda {

//! The device's transformer over ranks, a device each: espalier::parallel_backend's twin, for the models that
//! llama_backend runs. All ranks make the same passes; each has its part of the weights and of the cache, runs a
//! decoder of its own with the same parts, seed and prompt, and gets the same logits. What goes between ranks is work
//! in the stream, and in the graph of a round.
//!
//! Shapes      logits [n_outputs][vocab_size] on each rank; the cache has layers() layers of cache_row() numbers
//! Complexity  calls between ranks: one for the embedding, one for the logits, and for each layer four. Of a pass of n
//!             planned rows and R ranks a rank sends to each other one, with parts that divide evenly:
//!             4 n (hidden + 2) bytes of embeddings, tokens and positions; for each layer n / R (s (queries +
//!             intermediate) + 8 hidden) bytes, s those of a NumberT, or with rank_split::sums 16 n / R hidden; for
//!             each row asked for vocab / R logits, or 8 bytes with rank_logits::maxima. No allocation, no
//!             synchronisation: a graph can capture it
//! Law         Backend's, within rounding. Logits are the same on each rank, bit for bit. With batch_invariant a row
//!             depends on its tokens and positions alone, and with rank_split::outputs, too, it has the bits of
//!             llama_backend with batch_invariant, whatever the number of ranks, where that runs no persistent_pass and
//!             cuBLASLt sums an output alike in a part of a matrix: products take the algorithm of the whole
//! Law         with rank_split::sums, parts of a sum are added in the order of ranks, on the rank that has the output
//! Law         with rank_logits::maxima, as espalier::parallel_backend: nothing but `greedy` may read such rows
//! Errors      load: model_error, option_error, cuda_error. forward: input_error as llama_backend's; rank_error once a
//!             rank is dead or late. Where that happens in a pass, or ranks have other tokens or positions, logits are
//!             NaN, and raise_failure() throws rank_error
//! Pre         as llama_backend's; the ranks' batches have the same shapes
//! Source      Shoeybi et al., Megatron-LM, section 3, for rank_split::sums
template <Communicator CommunicatorT, class NumberT, class LogitT = float, class AttentionT = tree_attention<NumberT>>
class parallel_backend {
  static_assert(std::is_same_v<LogitT, float> || std::is_same_v<LogitT, NumberT>,
                "the logits of a transformer are float, or of the type of its weights");

 public:
  using number = LogitT;
  using weight_number = NumberT;  //!< of weights, keys and values
  using weights_type = rank_weights<NumberT>;

  static parallel_backend load(const std::string& path, CommunicatorT& ranks, const parallel_options& options = {}) {
    const model_files files = model_files::open(path);
    return parallel_backend(files.config, *files.tensors, ranks, options);
  }

  parallel_backend(const model_config& config, espalier::tensor_source& file, CommunicatorT& ranks,
                   const parallel_options& options = {})
      : config_(config),
        options_(require_options(options)),
        ranks_(&ranks),
        part_(config, ranks.rank(), ranks.size()),
        weights_(weights_type::load(config, file, part_, options.split)),
        max_positions_(config.positions(options.max_positions)),
        rotary_(max_positions_, config.rotary_dims, config.rope_theta, config.scaling),
        products_(detail::data_type_of<NumberT>, options.batch_invariant),
        queries_{config.query_size(), config.query_size() / config.n_kv_heads, ranks.size()},
        hidden_{config.hidden_size, rank_part::granule, ranks.size()},
        intermediate_{config.intermediate_size, rank_part::granule, ranks.size()},
        vocabulary_{config.vocab_size, rank_part::granule, ranks.size()},
        buffers_(config, part_, options, ranks.size()) {
    parted_[0] = 0;
    if (own_kv_heads() > 0) attention_.emplace(shape());
    add_products();
    products_.plan_up_to(max_rows());
    require(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  int vocab_size() const { return config_.vocab_size; }
  int max_rows() const { return options_.max_rows; }
  bool gives_maxima() const { return options_.logits == rank_logits::maxima; }
  int max_positions() const { return max_positions_; }
  const model_config& config() const { return config_; }
  const rank_part& part() const { return part_; }
  const weights_type& weights() const { return weights_; }

  //! Layers of this rank's cache, and numbers of its rows: those of the rank's key-value heads; of one head, which
  //! stays empty, where the rank has none.
  int layers() const { return config_.n_layers; }
  int cache_row() const { return (std::max)(part_.kv_size(config_), config_.head_dim); }

  //! Batches of this many rows or outputs will come often: products are planned for exactly as many. Not captured.
  void reserve(int rows) {
    require_option("rows", rows, 1, max_rows());
    products_.plan(rows);
  }

  //! Where batch.outputs is null, output i is row i.
  template <class KVStoreT>
  requires requires(KVStoreT& kv) {
    { kv.view() } -> std::same_as<kv_view<NumberT>>;
  }
  vocab_rows<LogitT> forward(KVStoreT& kv, const forward_batch_view& batch, cudaStream_t stream) {
    const kv_view<NumberT> cache = kv.view();
    check(cache, batch);
    if (batch.n_rows > 0) {
      ranks_->begin_pass(stream);
      run(cache, batch, stream);
      const std::size_t words = (logits_of(batch.n_outputs) * sizeof(LogitT) + 3) / 4;
      ranks_->end_pass(buffers_.logits, 4 * words, stream);
    }
    return {buffers_.logits, batch.n_outputs, config_.vocab_size};
  }

  //! Throws what has failed between ranks.
  void raise_failure() {
    ranks_->raise_failure();
    if (parted_[0] == 0) return;
    raise<rank_error>("the ranks do not agree: the batch of rank ", parted_[0],
                      " is not that of rank 0. All ranks need the same model, options, seed and costs.");
  }

 private:
  using layer_type = typename weights_type::layer_type;
  using linear_type = typename weights_type::linear_type;
  using job_type = detail::normalise_job<NumberT>;
  template <class ElementT>
  using blocks_of = detail::rank_blocks<ElementT>;
  using division = espalier::detail::rank_division;
  using buffers_type = detail::rank_buffers<NumberT, LogitT>;

  int rank() const { return ranks_->rank(); }
  int own_kv_heads() const { return part_.kv_heads.size(); }
  int own_queries() const { return part_.queries(config_).size(); }
  int own_projected() const { return own_queries() + 2 * part_.kv_size(config_); }
  int gates() const { return config_.gated_mlp ? 2 : 1; }
  bool sums() const { return options_.split == rank_split::sums; }
  std::size_t logits_of(int n) const { return static_cast<std::size_t>(n) * static_cast<std::size_t>(vocab_size()); }

  attention_shape shape() const {
    attention_shape of;
    of.n_heads = own_queries() / config_.head_dim;
    of.n_kv_heads = own_kv_heads();
    of.head_dim = config_.head_dim;
    of.max_rows = max_rows();
    of.max_context = attention_shape::context(options_.max_context, max_positions_);
    of.query_stride = own_projected();
    of.batch_invariant = options_.batch_invariant;
    return of;
  }

  void add_products() {
    const int hidden = config_.hidden_size;
    constexpr cudaDataType_t numbers = detail::data_type_of<NumberT>;
    // A rank may have no part of a matrix.
    const auto add = [&](int outputs, int inputs, cudaDataType_t result, bool accumulate, int whole_outputs) {
      if (outputs == 0 || inputs == 0) return -1;
      return products_.add(outputs, inputs, result, accumulate, 256, whole_outputs);
    };
    const auto add_back = [&](int own_inputs, int inputs) {
      if (sums()) return add(hidden, own_inputs, CUDA_R_32F, false, hidden);
      return add(part_.hidden.size(), inputs, CUDA_R_32F, true, hidden);
    };
    query_key_value_ = add(own_projected(), hidden, numbers, false, config_.query_size() + 2 * config_.kv_size());
    attention_out_ = add_back(own_queries(), config_.query_size());
    gate_up_ = add(gates() * part_.intermediate.size(), hidden, numbers, false, gates() * config_.intermediate_size);
    down_ = add_back(part_.intermediate.size(), config_.intermediate_size);
    head_ = add(part_.vocabulary.size(), hidden, detail::data_type_of<LogitT>, false, config_.vocab_size);
  }

  void check(const kv_view<NumberT>& kv, const forward_batch_view& batch) const {
    if (batch.n_rows > max_rows() || batch.n_outputs > max_rows()) {
      raise<input_error>("a batch has ", (std::max)(batch.n_rows, batch.n_outputs),
                         " rows, but the backend was built for at most ", max_rows(), " (option max_rows).");
    }
    if (kv.n_layers != layers() || kv.row_size != cache_row()) {
      raise<input_error>("the cache has ", kv.n_layers, " layers of ", kv.row_size,
                         " numbers a row, but this rank's part of the model ", layers(), " of ", cache_row(), ".");
    }
  }

  void multiply(int product, const linear_type& linear, const NumberT* x, void* y, int rows, cudaStream_t stream) {
    if (product >= 0) products_.multiply(product, linear.matrix, x, y, rows, stream);
  }

  template <class ElementT>
  void gather(const blocks_of<ElementT>& blocks, cudaStream_t stream) {
    ranks_->all_gather(blocks.data, blocks.bytes(), stream);
  }

  void run(const kv_view<NumberT>& kv, const forward_batch_view& batch, cudaStream_t stream) {
    const int n = batch.n_rows, rows = products_.planned(n);
    embed(batch, stream);
    job_type job = fresh_job();
    for (int i = 0; i < config_.n_layers; ++i) {
      const layer_type& layer = weights_.own.layers[static_cast<std::size_t>(i)];
      job.norms[0] = {layer.attention_norm.scale, layer.attention_norm.bias, buffers_.normed};
      if (config_.parallel_residual) job.norms[1] = {layer.mlp_norm.scale, layer.mlp_norm.bias, buffers_.mlp_normed};
      normalise(job, n, stream);

      const blocks_of<NumberT> attended(buffers_.blocks, queries_, rows);
      multiply(query_key_value_, layer.query_key_value, buffers_.normed, buffers_.projected, rows, stream);
      if (attention_) {
        rotate(i, layer, kv, batch, stream);
        attention_->run(buffers_.projected, kv, i, batch, 1.0F / std::sqrt(static_cast<float>(config_.head_dim)),
                        attended.of(rank()), stream);
      }
      go_back(attention_out_, layer.attention_out, attended, n, rows, stream);
      job.add_later(layer.attention_out.bias);
      if (!config_.parallel_residual) {
        job.norms[0] = {layer.mlp_norm.scale, layer.mlp_norm.bias, buffers_.normed};
        normalise(job, n, stream);
      }

      const blocks_of<NumberT> activated(buffers_.blocks, intermediate_, rows);
      const linear_type& first = config_.gated_mlp ? layer.gate : layer.up;
      multiply(gate_up_, first, config_.parallel_residual ? buffers_.mlp_normed : buffers_.normed, buffers_.wide, rows,
               stream);
      if (const int width = part_.intermediate.size(); width > 0) {
        detail::activate<NumberT>({buffers_.wide, first.bias, activated.of(rank()), width, config_.gated_mlp}, n,
                                  stream);
      }
      go_back(down_, layer.down, activated, n, rows, stream);
      job.add_later(layer.down.bias);
    }
    finish(job, batch, stream);
  }

  // Each rank finds the tokens of its part, and takes every other row from the rank that has it. Tokens and positions
  // go along: batches that differ must not be computed.
  void embed(const forward_batch_view& batch, cudaStream_t stream) {
    const int n = batch.n_rows, width = config_.hidden_size, own_tokens = part_.vocabulary.size();
    const detail::embedding_choice job{
        batch.tokens, vocabulary_,     buffers_.embedded, detail::embedding_choice::stride_of(n, width), n,
        width,        buffers_.stream, parted_.data()};
    float* own = buffers_.embedded + rank() * job.stride;
    if (own_tokens > 0) {
      detail::embed<NumberT>({batch.tokens, weights_.own.embedding, own_tokens, width, own, part_.vocabulary.begin}, n,
                             stream);
    }
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(std::int32_t);
    float* numbers = own + std::ptrdiff_t{n} * width;
    for (const std::int32_t* from : {batch.tokens, batch.positions}) {
      require(cudaMemcpyAsync(numbers, from, bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
      numbers += n;
    }
    ranks_->all_gather(buffers_.embedded, static_cast<std::size_t>(job.stride) * sizeof(float), stream);
    detail::choose(job, stream);
    own_block_is_stale_ = true;
  }

  // stream += W x, without the bias; each rank has its own part of x.
  void go_back(int product, const linear_type& linear, const blocks_of<NumberT>& x, int n, int rows,
               cudaStream_t stream) {
    const blocks_of<float> back(buffers_.hidden_blocks, hidden_, rows);
    float* own = back.of(rank());
    if (sums()) {
      multiply(product, linear, x.of(rank()), buffers_.partial, rows, stream);
      if (product < 0) {
        const std::size_t bytes = static_cast<std::size_t>(n * config_.hidden_size) * sizeof(float);
        require(cudaMemsetAsync(buffers_.partial, 0, bytes, stream), "cudaMemsetAsync");
      }
      detail::pack(buffers_.partial, n, back, stream);
      ranks_->all_to_all(back.data, buffers_.parts, back.bytes(), stream);
      detail::add(buffers_.stream, n, {buffers_.parts, hidden_, rows}, rank(), own, stream);
    } else {
      gather(x, stream);
      detail::unpack(x, n, buffers_.whole, stream);
      if (own_block_is_stale_) detail::pack_own(buffers_.stream, n, back, rank(), stream);
      multiply(product, linear, buffers_.whole, own, rows, stream);
    }
    gather(back, stream);
    detail::unpack(back, n, buffers_.stream, stream);
    own_block_is_stale_ = false;
  }

  job_type fresh_job() const { return job_type::of(buffers_.stream, config_.hidden_size, config_.norm_epsilon); }

  // Post: the job is a fresh one.
  void normalise(job_type& job, int n, cudaStream_t stream) {
    detail::normalise(job, n, stream);
    own_block_is_stale_ = own_block_is_stale_ || job.settles;
    job = fresh_job();
  }

  // Queries in place, keys and values of the rank's heads into its cache.
  void rotate(int index, const layer_type& layer, const kv_view<NumberT>& kv, const forward_batch_view& batch,
              cudaStream_t stream) const {
    auto job = detail::rotate_job<NumberT>::of(config_, rotary_, max_positions_, layer, buffers_.projected, index);
    job.n_heads = own_queries() / config_.head_dim;
    job.n_kv_heads = own_kv_heads();
    detail::rotate(job, kv, batch, stream);
  }

  // The final norm of the rows that are asked for, and their logits.
  void finish(job_type job, const forward_batch_view& batch, cudaStream_t stream) {
    const int n = batch.n_outputs;
    if (n == 0) return;
    const int rows = products_.planned(n);
    job.settles = false;
    job.rows = batch.outputs;
    job.norms[0] = {weights_.own.final_norm.scale, weights_.own.final_norm.bias, buffers_.normed};
    detail::normalise(job, n, stream);
    const blocks_of<LogitT> blocks(buffers_.logit_blocks, vocabulary_, rows);
    multiply(head_, weights_.own.head, buffers_.normed, blocks.of(rank()), rows, stream);
    if (options_.logits == rank_logits::rows) {
      gather(blocks, stream);
      detail::unpack(blocks, n, buffers_.logits, stream);
      return;
    }
    const std::int64_t stride = buffers_type::maxima_stride(n);
    detail::find_maxima(blocks.of(rank()), part_.vocabulary.size(), part_.vocabulary.begin, n,
                        buffers_.maxima + rank() * stride, stream);
    ranks_->all_gather(buffers_.maxima, static_cast<std::size_t>(stride) * sizeof(detail::part_maximum), stream);
    detail::spread(buffers_.maxima, stride, ranks_->size(), n, buffers_.logits, vocab_size(), stream);
  }

  model_config config_;
  parallel_options options_;
  CommunicatorT* ranks_;
  rank_part part_;
  weights_type weights_;
  int max_positions_;
  detail::rotary_table rotary_;
  std::optional<AttentionT> attention_;  // where the rank has heads
  matrix_products products_;
  pinned_array<std::int32_t> parted_{1};  // the rank that has another batch, or 0
  division queries_, hidden_, intermediate_, vocabulary_;
  int query_key_value_ = -1, attention_out_ = -1, gate_up_ = -1, down_ = -1, head_ = -1;  // -1: no part of it
  buffers_type buffers_;
  // Whether the stream has something that the own block of hidden_blocks, which was unpacked into it, has not.
  bool own_block_is_stale_ = true;
};

}  // namespace espalier::cuda
