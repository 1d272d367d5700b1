// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/cuda/model/attention/tree_attention.cuh"
#include "espalier/cuda/model/llama/array_pieces.cuh"
#include "espalier/cuda/model/llama/embed.cuh"
#include "espalier/cuda/model/llama/matrix_products.cuh"
#include "espalier/cuda/model/llama/model_weights.cuh"
#include "espalier/cuda/model/llama/number.cuh"
#include "espalier/cuda/model/llama/rotate.cuh"
#include "espalier/cuda/model/llama/row_upload.cuh"
#include "espalier/cuda/model/llama/step_launcher.cuh"
#include "espalier/cuda/model/parallel/communicator.cuh"
#include "espalier/cuda/model/parallel/rank_blocks.cuh"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "espalier/model/llama/model_steps.hpp"
#include "espalier/model/llama/model_tensors.hpp"
#include "espalier/model/parallel/communicator.hpp"
#include "espalier/model/parallel/rank_part.hpp"
#include "espalier/model/parallel/rank_rows.hpp"

namespace espalier::cuda {

//! Options of parallel_backend on the device.
struct parallel_options {
  int max_rows = 257;     //!< most rows of a forward pass: 257 for 256 drafted nodes and their root
  int max_positions = 0;  //!< positions that are computed; 0: as many as the model has
  int max_context = 0;    //!< slots of a sequence of the cache; 0: 1025 more than the positions
  //! How matrices are divided among ranks.
  rank_split split = rank_split::outputs;
  //! The part of the logits that each rank is given.
  rank_logits logits = rank_logits::rows;
  bool batch_invariant = false;  //!< a row's bits do not depend on the batch: see the law of parallel_backend

  static constexpr void describe(auto see) {
    see(option{"max_rows", &parallel_options::max_rows, "rows of the longest forward pass", 1, 1 << 16});
    see(option{"max_context", &parallel_options::max_context, "slots of a sequence of the cache", 0, 1 << 26});
    see(option{"split", &parallel_options::split, "how matrices are divided"});
    see(option{"logits", &parallel_options::logits, "what each rank is given of the logits"});
  }
};

//! A rank's part of a transformer's weights in the memory of its device, as espalier::rank_weights on the host. Norms
//! are whole, and so are the biases of attention_out and down. Of each matrix the rank has the rows of some outputs,
//! its part. With rank_split::sums it has all outputs of attention_out and down, but only the inputs of its part.
//!
//! Complexity  as espalier::rank_weights; host memory for 2^21 numbers. Synchronises
//! Errors      as model_weights
template <class NumberT>
class rank_weights {
 public:
  using layer_type = typename model_weights<NumberT>::layer_type;
  using linear_type = typename model_weights<NumberT>::linear_type;

  model_weights<NumberT> own;  //!< the rank's part, whose outputs are numbered from 0

  static rank_weights load(const model_config& config, espalier::tensor_source& file, const rank_part& part,
                           rank_split split) {
    rank_weights weights;
    weights.weights_taken_ = weights.own.read(config, file, espalier::detail::rank_rows(config, part, split));
    return weights;
  }

  std::size_t bytes() const { return own.bytes(); }
  //! Number of weights of matrices that load took from the file. If several ranks need parts of the same block of
  //! the file, each of them counts the whole block.
  std::int64_t weights_taken() const { return weights_taken_; }

 private:
  std::int64_t weights_taken_ = 0;
};

}  // namespace espalier::cuda

namespace espalier::cuda::detail {

// The memory of a transformer's pass over ranks on the device of one rank. It begins as zeros, since a pass also
// computes rows that no batch has written.
template <class NumberT, class LogitT>
struct rank_buffers {
  NumberT* normed = nullptr;       // [max_rows][hidden]
  NumberT* mlp_normed = nullptr;   // [max_rows][hidden], if the residual is parallel
  NumberT* projected = nullptr;    // [max_rows][own queries + 2 own kv_size]
  NumberT* wide = nullptr;         // [max_rows][gate, up][own intermediate]
  float* routed = nullptr;         // [max_rows][experts] products of the router
  std::int32_t* chosen = nullptr;  // [max_rows * used]
  float* factors = nullptr;        // [max_rows * used]
  float* outputs = nullptr;        // [max_rows * used][own columns, or all with rank_split::sums] outputs of experts
  NumberT* blocks = nullptr;       // results of attention or activation, of experts too, rank after rank
  NumberT* whole = nullptr;        // the results of all ranks side by side, with rank_split::outputs
  float* stream = nullptr;         // [max_rows][hidden] the residual stream
  float* output = nullptr;         // [max_rows][hidden] a product that is changed before it is added to `stream`
  float* embedded = nullptr;       // [ranks][embedding_choice::stride_of(max_rows, hidden)]
  float* hidden_blocks = nullptr;  // a product that goes back to the residual stream, rank after rank
  float* partial = nullptr;        // [max_rows][hidden] sums over this rank's inputs, with rank_split::sums
  float* parts = nullptr;          // sums over each rank's inputs, for the columns of this rank
  LogitT* logits = nullptr;        // [max_rows][vocab]
  LogitT* logit_blocks = nullptr;  // the logits, rank after rank
  part_maximum* maxima = nullptr;  // [ranks][maxima_stride(max_rows)], with rank_logits::maxima

  rank_buffers(const model_config& config, const rank_part& part, const parallel_options& options, int ranks) {
    place(config, part, options, ranks);
    numbers_.allocate(), floats_.allocate(), logits_.allocate(), maxima_.allocate(), chosen_.allocate();
    place(config, part, options, ranks);
    numbers_.zero(nullptr), floats_.zero(nullptr), logits_.zero(nullptr), maxima_.zero(nullptr);
  }

  // Returns the distance from one rank's first maximum to the next rank's, counted in maxima: a multiple of 256 bytes.
  static std::int64_t maxima_stride(int n) { return (std::int64_t{n} + 31) / 32 * 32; }

 private:
  // Gives each array its memory; while there is none yet, counts how much all arrays need.
  void place(const model_config& c, const rank_part& part, const parallel_options& options, int ranks) {
    const int n = options.max_rows, own_queries = part.queries(c).size(), gates = c.gated_mlp ? 2 : 1;
    const auto size = [&](int width) { return static_cast<std::size_t>(n) * static_cast<std::size_t>(width); };
    const auto all = [&](std::int64_t stride) { return static_cast<std::size_t>(stride * ranks); };
    const int uses = n * c.mixture.used;
    const auto of_uses = [&](int width) { return static_cast<std::size_t>(uses) * static_cast<std::size_t>(width); };
    const auto blocks_of = [&](auto* none, int columns, int granule, int rows) {
      return rank_blocks(none, {columns, granule, ranks}, rows).numbers();
    };
    constexpr NumberT* number = nullptr;
    constexpr float* single = nullptr;
    constexpr LogitT* logit = nullptr;
    const bool sums = options.split == rank_split::sums;
    normed = numbers_.take(size(c.hidden_size));
    if (c.parallel_residual) mlp_normed = numbers_.take(size(c.hidden_size));
    projected = numbers_.take(size(own_queries + 2 * part.kv_size(c)));
    wide = numbers_.take(size(gates * part.intermediate.size()));
    blocks = numbers_.take((std::max)({blocks_of(number, c.query_size(), c.query_size() / c.n_kv_heads, n),
                                       blocks_of(number, c.intermediate_size, rank_part::granule, n),
                                       blocks_of(number, c.mixture.size, rank_part::granule, uses)}));
    if (!sums) {
      whole = numbers_.take((std::max)(size((std::max)(c.query_size(), c.intermediate_size)), of_uses(c.mixture.size)));
    }
    if (c.has_mixtures()) {
      routed = floats_.take(size(c.mixture.experts));
      chosen = chosen_.take(of_uses(1));
      factors = floats_.take(of_uses(1));
      outputs = floats_.take(of_uses(sums ? c.hidden_size : part.hidden.size()));
    }
    stream = floats_.take(size(c.hidden_size));
    if (!c.adds_products()) output = floats_.take(size(c.hidden_size));
    embedded = floats_.take(all(embedding_choice::stride_of(n, c.hidden_size)));
    const std::size_t between = blocks_of(single, c.hidden_size, rank_part::granule, n);
    hidden_blocks = floats_.take(between);
    if (sums) partial = floats_.take(size(c.hidden_size)), parts = floats_.take(between);
    logits = logits_.take(size(c.vocab_size));
    logit_blocks = logits_.take(blocks_of(logit, c.vocab_size, rank_part::granule, n));
    if (options.logits == rank_logits::maxima) maxima = maxima_.take(all(maxima_stride(n)));
  }

  array_pieces<NumberT> numbers_;
  array_pieces<float> floats_;
  array_pieces<LogitT> logits_;
  array_pieces<part_maximum> maxima_;
  array_pieces<std::int32_t> chosen_;
};

}  // namespace espalier::cuda::detail

namespace espalier::cuda {

//! A transformer that is divided among ranks, each with a device of its own, as espalier::parallel_backend on the host,
//! for the models that llama_backend runs. All ranks make the same passes. Each has its part of the weights and of the
//! cache, and gets the same logits. Each runs a decoder of its own, which has the same drafter, policy, verifier, seed
//! and prompt as the other ranks' decoders. Ranks exchange rows by work in the stream, which a graph of a round can
//! hold.
//!
//! Shapes      logits [n_outputs][vocab_size] on each rank; the cache has layers() layers of cache_row() numbers
//! Complexity  calls between ranks: one for the embedding, one for the logits, and four for each layer. In a pass of n
//!             planned rows over R ranks, whose parts are equal, a rank sends to each other rank 4 n (hidden + 2)
//!             bytes of embeddings, tokens and positions; for each layer n / R (s (queries + intermediate) + 8 hidden)
//!             bytes, where s is the size of a NumberT and `intermediate`, in a mixture, that of all experts that a row
//!             uses, or with rank_split::sums 16 n / R hidden bytes; and for each output vocab / R logits, or with
//!             rank_logits::maxima 8 bytes. No allocation, no synchronisation: a graph can capture it
//! Law         the laws of Backend, within rounding. Logits are the same on each rank, bit for bit. With
//!             batch_invariant a row's bits depend as in llama_backend on its tokens and positions alone. With
//!             batch_invariant and rank_split::outputs a row has the bits that llama_backend with batch_invariant gives
//!             without persistent_pass, whatever the number of ranks. This takes for granted that cuBLASLt sums an
//!             output in a part of a matrix as in the whole; products take the algorithm of the whole matrix
//! Law         with rank_split::sums, parts of a sum are added in the order of ranks, on the rank that has the output
//! Law         with rank_logits::maxima, as in espalier::parallel_backend, only `greedy` may read the rows
//! Errors      load: model_error, option_error, cuda_error. forward: input_error as in llama_backend; rank_error after
//!             a rank has died or come late. If that happens during a pass, or ranks have different tokens or
//!             positions, the logits are NaN, and raise_failure() throws rank_error
//! Pre         that of llama_backend; the ranks' batches have the same shapes
//! Source      Shoeybi et al., Megatron-LM, section 3, for rank_split::sums
template <Communicator CommunicatorT, class NumberT, class LogitT = float, class AttentionT = tree_attention<NumberT>>
class parallel_backend {
  static_assert(std::is_same_v<LogitT, float> || std::is_same_v<LogitT, NumberT>,
                "the logits of a transformer are float, or of the type of its weights");

 public:
  using number = LogitT;
  using weight_number = NumberT;  //!< type of weights, keys and values
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
        own_(own_config()),
        steps_(config),
        rotary_(config, max_positions_),
        products_(detail::data_type_of<NumberT>, options.batch_invariant),
        queries_{config.query_size(), config.query_size() / config.n_kv_heads, ranks.size()},
        hidden_{config.hidden_size, rank_part::granule, ranks.size()},
        intermediate_{config.intermediate_size, rank_part::granule, ranks.size()},
        expert_{config.mixture.size, rank_part::granule, ranks.size()},
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

  //! Number of layers of this rank's cache.
  int layers() const { return config_.n_layers; }
  //! Number of numbers in a row of a layer of this rank's cache: the keys of the rank's key-value heads. If the rank
  //! has no such heads, it is head_dim, and the rows stay empty.
  int cache_row() const { return (std::max)(part_.kv_size(config_), config_.head_dim); }

  //! Plans products for exactly this number of rows, which is worth it if many batches have so many rows or outputs. A
  //! graph cannot capture it.
  void reserve(int rows) {
    require_option("rows", rows, 1, max_rows());
    products_.plan(rows);
  }

  //! Computes a pass and returns the logits of the rows in batch.outputs; if that is null, output i is row i.
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

  //! Throws the failure of a call between ranks, or a rank_error that names a rank whose batch differed from rank 0's;
  //! does nothing if there was neither.
  void raise_failure() {
    ranks_->raise_failure();
    if (parted_[0] == 0) return;
    raise<rank_error>("the ranks do not agree: the batch of rank ", parted_[0],
                      " is not that of rank 0. All ranks need the same model, options, seed and costs.");
  }

 private:
  using linear_type = typename weights_type::linear_type;
  template <class ElementT>
  using blocks_of = detail::rank_blocks<ElementT>;
  using division = espalier::detail::rank_division;
  using buffers_type = detail::rank_buffers<NumberT, LogitT>;

  int rank() const { return ranks_->rank(); }
  int own_kv_heads() const { return part_.kv_heads.size(); }
  int own_queries() const { return part_.queries(config_).size(); }
  int gates() const { return config_.gated_mlp ? 2 : 1; }
  bool sums() const { return options_.split == rank_split::sums; }
  std::size_t logits_of(int n) const { return static_cast<std::size_t>(n) * static_cast<std::size_t>(vocab_size()); }

  // Returns the configuration of this rank's part of the model.
  model_config own_config() const {
    model_config own = config_;
    own.n_heads = own_queries() / config_.head_dim;
    own.n_kv_heads = own_kv_heads();
    own.intermediate_size = part_.intermediate.size();
    own.mixture.size = part_.expert.size();
    own.vocab_size = part_.vocabulary.size();
    return own;
  }

  attention_shape shape() const {
    attention_shape of;
    of.n_heads = own_.n_heads;
    of.n_kv_heads = own_.n_kv_heads;
    of.head_dim = config_.head_dim;
    of.max_rows = max_rows();
    of.max_context = attention_shape::context(options_.max_context, max_positions_);
    of.query_stride = own_.projected_size();
    of.batch_invariant = options_.batch_invariant;
    return of;
  }

  void add_products() {
    const int hidden = config_.hidden_size;
    constexpr cudaDataType_t numbers = detail::data_type_of<NumberT>;
    // Adds a product and returns its number, or -1 if this rank has no part of the matrix.
    const auto add = [&](int outputs, int inputs, cudaDataType_t result, bool accumulate, int whole_outputs) {
      if (outputs == 0 || inputs == 0) return -1;
      return products_.add(outputs, inputs, result, accumulate, 256, whole_outputs);
    };
    const auto add_back = [&](int own_inputs, int inputs) {
      if (sums()) return add(hidden, own_inputs, CUDA_R_32F, false, hidden);
      return add(part_.hidden.size(), inputs, CUDA_R_32F, config_.adds_products(), hidden);
    };
    numbers_.query_key_value = add(own_.projected_size(), hidden, numbers, false, config_.projected_size());
    numbers_.attention_out = add_back(own_queries(), config_.query_size());
    numbers_.widen = add(gates() * own_.intermediate_size, hidden, numbers, false, gates() * config_.intermediate_size);
    numbers_.down = add_back(own_.intermediate_size, config_.intermediate_size);
    numbers_.router = add(config_.mixture.experts, hidden, CUDA_R_32F, false, config_.mixture.experts);
    numbers_.head = add(own_.vocab_size, hidden, detail::data_type_of<LogitT>, false, config_.vocab_size);
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
    const int rows = products_.planned(batch.n_rows), n_outputs = batch.n_outputs;
    const blocks_of<LogitT> logits(buffers_.logit_blocks, vocabulary_, products_.planned((std::max)(n_outputs, 1)));
    place here{*this, batch.n_rows};
    detail::model_memory<NumberT, LogitT> memory;
    memory.stream = buffers_.stream;
    memory.output = buffers_.output;
    memory.normed = buffers_.normed;
    memory.mlp_normed = buffers_.mlp_normed;
    memory.projected = buffers_.projected;
    memory.mixed = blocks_of<NumberT>(buffers_.blocks, queries_, rows).of(rank());
    memory.widened = buffers_.wide;
    memory.activated = blocks_of<NumberT>(buffers_.blocks, intermediate_, rows).of(rank());
    memory.routed = buffers_.routed, memory.chosen = buffers_.chosen;
    memory.factors = buffers_.factors, memory.outputs = buffers_.outputs;
    memory.logits = logits.of(rank());
    const AttentionT* attention = attention_ ? &*attention_ : nullptr;
    detail::step_launcher<NumberT, LogitT, AttentionT, model_weights<NumberT>, place>{
        steps_, own_, products_, numbers_, rotary_, attention, weights_.own, memory, 0, here}
        .run(steps_.all(), kv, batch, stream);
    if (n_outputs > 0) share_logits(logits, n_outputs, stream);
  }

  // The PlaceT of step_launcher for a rank, which has a part of each matrix: products that go back to the residual
  // stream are computed by all ranks together.
  struct place {
    parallel_backend& of;
    int n;  // rows of the batch

    void embed(const forward_batch_view& batch, cudaStream_t stream) { of.embed(batch, stream); }
    void add(const detail::model_step& step, int number, const linear_type& linear, const NumberT*, int rows,
             cudaStream_t stream) {
      const division& inputs = step.part == detail::model_part::down ? of.intermediate_ : of.queries_;
      const blocks_of<NumberT> x(of.buffers_.blocks, inputs, rows);
      of.go_back(step.adds, x, n, n, rows, stream, [&](NumberT* from, float* to) {
        if (number < 0 && of.sums()) of.clear(to, n, stream);
        of.multiply(number, linear, from, to, rows, stream);
      });
    }
    void dispatch(detail::mixture_job<NumberT> job, cudaStream_t stream) {
      const int uses = job.rows * job.used;
      const blocks_of<NumberT> x(of.buffers_.blocks, of.expert_, uses);
      job.activated = x.of(of.rank());
      const detail::mixture_launcher<NumberT> mixture{job, stream};
      mixture.widen();
      of.go_back(true, x, uses, n, of.products_.planned(n), stream, [&](NumberT* from, float* to) {
        if (of.sums()) {
          of.clear(to, n, stream);
          if (of.rank() > 0) job.down_bias = nullptr;  // rank 0 adds the biases
        } else {
          job.width = of.part_.hidden.size();
          if (job.down_bias != nullptr) job.down_bias += of.part_.hidden.begin;
        }
        job.activated = from, job.to = to;
        mixture.narrow();
        mixture.add();
      });
    }
    void stream_changed() { of.own_block_is_stale_ = true; }
    float* kept(int) const { return nullptr; }
  };

  // Fills the residual stream: each rank reads the embeddings of the tokens in its part of the vocabulary, and takes
  // those of all other tokens from the ranks that have them. The ranks also send their tokens and positions, so that
  // different batches are detected.
  void embed(const forward_batch_view& batch, cudaStream_t stream) {
    const int n = batch.n_rows, width = config_.hidden_size, own_tokens = part_.vocabulary.size();
    const detail::embedding_choice job{
        batch.tokens, vocabulary_,     buffers_.embedded, detail::embedding_choice::stride_of(n, width), n,
        width,        buffers_.stream, parted_.data()};
    float* own = buffers_.embedded + rank() * job.stride;
    if (own_tokens > 0) {
      detail::embed<NumberT>({batch.tokens, weights_.own.embedding, own_tokens, width, own, part_.vocabulary.begin,
                              config_.embedding_scale},
                             n, stream);
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

  void clear(float* rows, int n, cudaStream_t stream) const {
    const std::size_t bytes = static_cast<std::size_t>(n * config_.hidden_size) * sizeof(float);
    require(cudaMemsetAsync(rows, 0, bytes, stream), "cudaMemsetAsync");
  }

  // Adds a product to the residual stream, or writes it to buffers_.output if the model normalises it before it is
  // added. Each rank has its own part of the n_inputs rows of inputs; n is the number of rows of the batch, `rows` the
  // number that is planned for it. sum(from, to) computes the rank's part of the product. With rank_split::sums it
  // writes all columns, from the rank's part of the inputs; otherwise it adds to the rank's columns, or writes them if
  // `adds` is false, from whole inputs.
  template <class SumT>
  void go_back(bool adds, const blocks_of<NumberT>& inputs, int n_inputs, int n, int rows, cudaStream_t stream,
               const SumT& sum) {
    const blocks_of<float> back(buffers_.hidden_blocks, hidden_, rows);
    float *own = back.of(rank()), *to = adds ? buffers_.stream : buffers_.output;
    if (sums()) {
      sum(inputs.of(rank()), buffers_.partial);
      detail::pack(buffers_.partial, n, back, stream);
      ranks_->all_to_all(back.data, buffers_.parts, back.bytes(), stream);
      const blocks_of<float> parts(buffers_.parts, hidden_, rows);
      detail::add(adds ? buffers_.stream : nullptr, n, parts, rank(), own, stream);
    } else {
      gather(inputs, stream);
      detail::unpack(inputs, n_inputs, buffers_.whole, stream);
      if (adds && own_block_is_stale_) detail::pack_own(buffers_.stream, n, back, rank(), stream);
      sum(buffers_.whole, own);
    }
    gather(back, stream);
    detail::unpack(back, n, to, stream);
    own_block_is_stale_ = false;
  }

  // Gives each rank the logits of all parts of the vocabulary, or only the greatest logit of each part.
  void share_logits(const blocks_of<LogitT>& blocks, int n, cudaStream_t stream) {
    if (options_.logits == rank_logits::rows) {
      gather(blocks, stream);
      detail::unpack(blocks, n, buffers_.logits, stream);
      return;
    }
    const std::int64_t stride = buffers_type::maxima_stride(n);
    detail::find_maxima(blocks.of(rank()), own_.vocab_size, part_.vocabulary.begin, n,
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
  model_config own_;  // with the heads, intermediate size and vocabulary of this rank
  detail::model_steps steps_;
  detail::rotary_tables rotary_;
  std::optional<AttentionT> attention_;  // none: the rank has no heads
  matrix_products products_;
  pinned_array<std::int32_t> parted_{1};  // number of a rank whose batch differed from rank 0's; 0: none
  division queries_, hidden_, intermediate_, expert_, vocabulary_;
  detail::step_products numbers_;
  buffers_type buffers_;
  // Whether the residual stream has changed since this rank's block of hidden_blocks was unpacked into it.
  bool own_block_is_stale_ = true;
};

}  // namespace espalier::cuda
