// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/read_ahead.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/cuda/model/attention/tree_attention.cuh"
#include "espalier/cuda/model/llama/activate.cuh"
#include "espalier/cuda/model/llama/array_pieces.cuh"
#include "espalier/cuda/model/llama/embed.cuh"
#include "espalier/cuda/model/llama/matrix_products.cuh"
#include "espalier/cuda/model/llama/model_weights.cuh"
#include "espalier/cuda/model/llama/normalise.cuh"
#include "espalier/cuda/model/llama/number.cuh"
#include "espalier/cuda/model/llama/persistent_pass.cuh"
#include "espalier/cuda/model/llama/rotate.cuh"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_files.hpp"

namespace espalier::cuda {

struct llama_options {
  int max_rows = 257;                //!< longest batch of one forward pass: a tree of 256 and its root
  int max_positions = 0;             //!< 0: as many as the model has
  int max_context = 0;               //!< slots of a sequence of the cache; 0: max_positions and a tree of 1024
  std::vector<int> hidden_layers{};  //!< layers, from 0, whose output stays readable after a forward pass
  bool batch_invariant = false;      //!< a row's bits do not depend on the batch: see the law below
  int read_ahead_bytes = -1;         //!< of the next product's weights, asked for by the kernel before it; -1: a
                                     //!< quarter of the second-level cache; nothing before compute capability 9.0

  static constexpr void describe(auto see) {
    see(option{"max_rows", &llama_options::max_rows, "rows of the longest forward pass", 1, 1 << 16});
    see(option{"read_ahead_bytes", &llama_options::read_ahead_bytes, "of the next product's weights", -1, 1 << 30});
    see(option{"max_context", &llama_options::max_context, "slots of a sequence of the cache", 0, 1 << 26});
  }
};

//! A transformer on the device: espalier::llama_backend's twin, the same models from the same files, but for Gemma's
//! and those whose layers see a window.
//!
//! Weights, keys, values and activations are NumberT; the residual stream, norms and all sums are float, and so are the
//! logits, unless LogitT says otherwise. Products are cuBLASLt's, attention is AttentionT's; what stands between them
//! is one kernel each.
//!
//! Own kernels begin while the one before them ends, on compute capability 9.0 and later; cuBLASLt's products begin
//! after all before them. Those kernels leave memory idle, so they ask for the first columns of the next product's
//! weights, which then wait in the second-level cache.
//!
//! Where weights stay in the second-level cache and persistent_pass takes the model, every pass of it is one launch of
//! that instead, unless AttentionT is not the library's.
//!
//!     auto target = cuda::llama_backend<__nv_bfloat16>::load("models/target", {.max_rows = 257});
//!
//! Shapes      path: what model_files::open takes; logits [n_outputs][vocab_size]
//! Complexity  a pass is 3 + 9 n_layers launches and products, whatever the batch holds (GPT-NeoX with a parallel
//!             residual: one a layer fewer; one more where the last layer is among hidden_layers, or attention divides
//!             the context). Products run for the least planned number of rows that holds the batch: those of
//!             forward_bucket(), max_rows, and what reserve() has added. No allocation, no search for algorithms, no
//!             synchronisation: a graph can capture it
//! Law         Backend's, within rounding. The same batch gives the same bits. What other rows hold changes none of a
//!             row's; how many there are does, through the algorithms that cuBLASLt chooses and the parts that
//!             attention divides a context into. With batch_invariant they depend on its tokens and positions alone,
//!             those that it sees and itself: alone, in a tree in any order of its nodes, in a prompt cut anyhow, and
//!             so greedy texts are those of plain decoding, token for token. Each product then keeps one algorithm,
//!             which does not divide sums, and attention sums by position. tree_attention does so; another AttentionT
//!             is told by its shape
//! Errors      load: model_error for files that do not fit, option_error, cuda_error. forward: input_error for more
//!             than max_rows() rows, or a cache made for another model; a token outside the vocabulary or a position
//!             beyond the last gives NaN logits, as NaN weights do
//! Pre         one forward at a time; slots lie in the cache
template <class NumberT, class LogitT = float, class AttentionT = tree_attention<NumberT>>
class llama_backend {
  static_assert(std::is_same_v<LogitT, float> || std::is_same_v<LogitT, NumberT>,
                "the logits of a transformer are float, or of the type of its weights");

 public:
  using number = LogitT;
  using weight_number = NumberT;  //!< of weights, keys and values
  using weights_type = model_weights<NumberT>;

  static llama_backend load(const std::string& path, const llama_options& options = {}) {
    const model_files files = model_files::open(path);
    return llama_backend(files.config, weights_type::load(files.config, *files.tensors), options);
  }

  llama_backend(const model_config& config, weights_type weights, const llama_options& options = {})
      : llama_backend(config, std::make_shared<const weights_type>(std::move(weights)), options) {}

  //! Over the weights of another one, which are held once.
  llama_backend(const model_config& config, std::shared_ptr<const weights_type> weights,
                const llama_options& options = {})
      : config_(config),
        weights_(std::move(weights)),
        max_rows_(require_options(options).max_rows),
        max_positions_(config.positions(options.max_positions)),
        hidden_layers_(options.hidden_layers),
        read_ahead_bytes_(checked_read_ahead(options)),
        rotary_(max_positions_, config.rotary_dims, config.rope_theta, config.scaling),
        attention_(make_attention(config, options)),
        products_(detail::data_type_of<NumberT>, options.batch_invariant) {
    for (const int layer : hidden_layers_)
      require_option("hidden_layers", layer, 0, config_.n_layers - 1);
    place_buffers();
    activations_.allocate(), floats_.allocate(), logits_memory_.allocate();
    place_buffers();
    if constexpr (may_persist) make_persistent();
    if (!persistent_) {
      add_products();
      products_.plan_up_to(max_rows_);
    }
    // Rows that no batch has written are computed with, too.
    activations_.zero(nullptr), floats_.zero(nullptr), logits_memory_.zero(nullptr);
    require(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  int vocab_size() const { return config_.vocab_size; }
  int max_rows() const { return max_rows_; }
  int max_positions() const { return max_positions_; }
  const model_config& config() const { return config_; }
  const std::vector<int>& hidden_layers() const { return hidden_layers_; }
  std::size_t weight_bytes() const { return weights_->bytes(); }
  //! For a draft model that borrows the embedding and the output matrix, and for another one over the same weights.
  std::shared_ptr<const weights_type> weights() const { return weights_; }

  //! Batches of this many rows or outputs will come often: products are planned for exactly as many. Not captured.
  void reserve(int rows) {
    require_option("rows", rows, 1, max_rows_);
    if (!persistent_) products_.plan(rows);
  }

  //! Where batch.outputs is null, output i is row i.
  template <class KVStoreT>
  requires requires(KVStoreT& kv) {
    { kv.view() } -> std::same_as<kv_view<NumberT>>;
  }
  vocab_rows<LogitT> forward(KVStoreT& kv, const forward_batch_view& batch, cudaStream_t stream) {
    const kv_view<NumberT> cache = kv.view();
    check(cache, batch);
    if (batch.n_rows > 0) run(cache, batch, stream);
    return {logits_, batch.n_outputs, config_.vocab_size};
  }

  //! The residual stream after `layer`, before the final norm, of the rows of the last batch.
  //!
  //! Shapes      [n_rows][hidden_size], in the memory of the device, there when the stream has passed; the same address
  //!             always
  //! Errors      option_error if the layer is not among options.hidden_layers
  const float* hidden(int layer) const {
    const float* found = kept(layer);
    if (found == nullptr) raise<option_error>("option hidden_layers does not list layer ", layer, ".");
    return found;
  }

 private:
  using layer_type = typename weights_type::layer_type;
  using norm_type = typename weights_type::norm_type;
  using job_type = detail::normalise_job<NumberT>;
  using pass_type = persistent_pass<NumberT, LogitT>;

  static constexpr bool may_persist = sizeof(NumberT) == 2 && std::is_same_v<AttentionT, tree_attention<NumberT>>;

  static AttentionT make_attention(const model_config& config, const llama_options& options) {
    attention_shape shape;
    shape.n_heads = config.n_heads;
    shape.n_kv_heads = config.n_kv_heads;
    shape.head_dim = config.head_dim;
    shape.max_rows = options.max_rows;
    shape.max_context = attention_shape::context(options.max_context, config.positions(options.max_positions));
    shape.query_stride = config.query_size() + 2 * config.kv_size();
    shape.batch_invariant = options.batch_invariant;
    return AttentionT(shape);
  }

  // How much of the second-level cache is filled beforehand. The rest is left to what is there already.
  static std::size_t checked_read_ahead(const llama_options& options) {
    if (options.read_ahead_bytes >= 0) return static_cast<std::size_t>(options.read_ahead_bytes);
    int device = 0, major = 0, cache = 0;
    require(cudaGetDevice(&device), "cudaGetDevice");
    require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
    require(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device), "cudaDeviceGetAttribute");
    return major >= 9 ? static_cast<std::size_t>(cache) / 4 : 0;
  }

  read_ahead next(const NumberT* matrix, int outputs, int inputs) const {
    return read_ahead::of(matrix, static_cast<std::size_t>(outputs), sizeof(NumberT) * static_cast<std::size_t>(inputs),
                          read_ahead_bytes_);
  }

  // Attention reads the context in between: what it leaves no room for is not asked for.
  read_ahead next_after_attention(const layer_type& layer, const forward_batch_view& batch) const {
    const std::size_t context =
        2 * sizeof(NumberT) * static_cast<std::size_t>(config_.kv_size()) * static_cast<std::size_t>(batch.max_context);
    if (context > 2 * read_ahead_bytes_) return {};
    return next(layer.attention_out.matrix, config_.hidden_size, config_.query_size());
  }

  void make_persistent() {
    if (!pass_type::fits(config_, max_rows_)) return;
    persistent_.emplace(config_, *weights_, rotary_, max_positions_,
                        pass_buffers<NumberT, LogitT>{stream_, projected_, attended_, activated_, logits_});
    for (const int layer : hidden_layers_)
      persistent_->keep(layer, kept(layer));
  }

  void add_products() {
    const int hidden = config_.hidden_size, wide = (config_.gated_mlp ? 2 : 1) * config_.intermediate_size;
    constexpr cudaDataType_t numbers = detail::data_type_of<NumberT>;
    query_key_value_ = products_.add(config_.query_size() + 2 * config_.kv_size(), hidden, numbers, false);
    attention_out_ = products_.add(hidden, config_.query_size(), CUDA_R_32F, true);
    gate_up_ = products_.add(wide, hidden, numbers, false);
    down_ = products_.add(hidden, config_.intermediate_size, CUDA_R_32F, true);
    head_ = products_.add(config_.vocab_size, hidden, detail::data_type_of<LogitT>, false);
  }

  void place_buffers() {
    const auto size = [&](int width) { return static_cast<std::size_t>(max_rows_) * static_cast<std::size_t>(width); };
    normed_ = activations_.take(size(config_.hidden_size));
    if (config_.parallel_residual) mlp_normed_ = activations_.take(size(config_.hidden_size));
    projected_ = activations_.take(size(config_.query_size() + 2 * config_.kv_size()));
    attended_ = activations_.take(size(config_.query_size()));
    wide_ = activations_.take(size((config_.gated_mlp ? 2 : 1) * config_.intermediate_size));
    activated_ = activations_.take(size(config_.intermediate_size));
    stream_ = floats_.take(size(config_.hidden_size));
    hidden_ = floats_.take(size(config_.hidden_size) * hidden_layers_.size());
    logits_ = logits_memory_.take(size(config_.vocab_size));
  }

  float* kept(int layer) const {
    const auto found = std::find(hidden_layers_.begin(), hidden_layers_.end(), layer);
    if (found == hidden_layers_.end()) return nullptr;
    return hidden_ + (found - hidden_layers_.begin()) * static_cast<std::ptrdiff_t>(max_rows_) * config_.hidden_size;
  }

  void check(const kv_view<NumberT>& kv, const forward_batch_view& batch) const {
    if (batch.n_rows > max_rows_ || batch.n_outputs > max_rows_) {
      raise<input_error>("a batch has ", (std::max)(batch.n_rows, batch.n_outputs),
                         " rows, but the backend was built for at most ", max_rows_, " (option max_rows).");
    }
    if (kv.n_layers != config_.n_layers || kv.row_size != config_.kv_size()) {
      raise<input_error>("the cache has ", kv.n_layers, " layers of ", kv.row_size, " numbers a row, but the model ",
                         config_.n_layers, " of ", config_.kv_size(), ".");
    }
  }

  void run(const kv_view<NumberT>& kv, const forward_batch_view& batch, cudaStream_t stream) {
    if constexpr (may_persist) {
      if (persistent_) return persistent_->run(kv, batch, stream);
    }
    run_layers(kv, batch, stream);
  }

  void run_layers(const kv_view<NumberT>& kv, const forward_batch_view& batch, cudaStream_t stream) {
    const int rows = products_.planned(batch.n_rows), hidden = config_.hidden_size;
    const int wide = (config_.gated_mlp ? 2 : 1) * config_.intermediate_size;
    detail::embed<NumberT>({batch.tokens, weights_->embedding, config_.vocab_size, config_.hidden_size, stream_},
                           batch.n_rows, stream);
    job_type job = fresh_job();
    for (int i = 0; i < config_.n_layers; ++i) {
      const layer_type& layer = weights_->layers[static_cast<std::size_t>(i)];
      const auto& first = config_.gated_mlp ? layer.gate : layer.up;
      job.norms[0] = {layer.attention_norm.scale, layer.attention_norm.bias, normed_};
      if (config_.parallel_residual) job.norms[1] = {layer.mlp_norm.scale, layer.mlp_norm.bias, mlp_normed_};
      job.next = next(layer.query_key_value.matrix, config_.query_size() + 2 * config_.kv_size(), hidden);
      detail::normalise(job, batch.n_rows, stream);
      job = fresh_job();

      products_.multiply(query_key_value_, layer.query_key_value.matrix, normed_, projected_, rows, stream);
      rotate(i, layer, kv, batch, stream);
      attention_.run(projected_, kv, i, batch, 1.0F / std::sqrt(static_cast<float>(config_.head_dim)), attended_,
                     stream);
      products_.multiply(attention_out_, layer.attention_out.matrix, attended_, stream_, rows, stream);
      job.add_later(layer.attention_out.bias);
      if (!config_.parallel_residual) {
        job.norms[0] = {layer.mlp_norm.scale, layer.mlp_norm.bias, normed_};
        job.next = next(first.matrix, wide, hidden);
        detail::normalise(job, batch.n_rows, stream);
        job = fresh_job();
      }

      products_.multiply(gate_up_, first.matrix, config_.parallel_residual ? mlp_normed_ : normed_, wide_, rows,
                         stream);
      detail::activate<NumberT>({wide_, first.bias, activated_, config_.intermediate_size, config_.gated_mlp,
                                 next(layer.down.matrix, hidden, config_.intermediate_size)},
                                batch.n_rows, stream);
      products_.multiply(down_, layer.down.matrix, activated_, stream_, rows, stream);
      job.add_later(layer.down.bias);
      job.keep = kept(i);
    }
    finish(job, batch, stream);
  }

  job_type fresh_job() const { return job_type::of(stream_, config_.hidden_size, config_.norm_epsilon); }

  void rotate(int index, const layer_type& layer, const kv_view<NumberT>& kv, const forward_batch_view& batch,
              cudaStream_t stream) const {
    auto job = detail::rotate_job<NumberT>::of(config_, rotary_, max_positions_, layer, projected_, index);
    job.next = next_after_attention(layer, batch);
    detail::rotate(job, kv, batch, stream);
  }

  // The final norm of the rows that are asked for, and their logits.
  void finish(job_type job, const forward_batch_view& batch, cudaStream_t stream) {
    if (job.keep != nullptr) {
      detail::normalise(job, batch.n_rows, stream);
      job = fresh_job();
    }
    if (batch.n_outputs == 0) return;
    job.settles = false;
    job.rows = batch.outputs;
    job.norms[0] = {weights_->final_norm.scale, weights_->final_norm.bias, normed_};
    job.next = next(weights_->head.matrix, config_.vocab_size, config_.hidden_size);
    detail::normalise(job, batch.n_outputs, stream);
    products_.multiply(head_, weights_->head.matrix, normed_, logits_, products_.planned(batch.n_outputs), stream);
  }

  model_config config_;
  std::shared_ptr<const weights_type> weights_;
  int max_rows_;
  int max_positions_;
  std::vector<int> hidden_layers_;
  std::size_t read_ahead_bytes_;
  detail::rotary_table rotary_;
  AttentionT attention_;
  matrix_products products_;
  int query_key_value_ = 0, attention_out_ = 0, gate_up_ = 0, down_ = 0, head_ = 0;

  detail::array_pieces<NumberT> activations_;
  detail::array_pieces<float> floats_;
  detail::array_pieces<LogitT> logits_memory_;
  NumberT* normed_ = nullptr;      // [max_rows][hidden_size]
  NumberT* mlp_normed_ = nullptr;  // [max_rows][hidden_size], where the residual is parallel
  NumberT* projected_ = nullptr;   // [max_rows][query_size + 2 kv_size]
  NumberT* attended_ = nullptr;    // [max_rows][query_size]
  NumberT* wide_ = nullptr;        // [max_rows][gate, up][intermediate_size]
  NumberT* activated_ = nullptr;   // [max_rows][intermediate_size]
  float* stream_ = nullptr;        // [max_rows][hidden_size]
  float* hidden_ = nullptr;        // [hidden_layers][max_rows][hidden_size]
  LogitT* logits_ = nullptr;       // [max_rows][vocab_size]
  std::optional<pass_type> persistent_;
};

}  // namespace espalier::cuda
