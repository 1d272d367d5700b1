// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
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
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/cuda/kv_store/recurrent.cuh"
#include "espalier/cuda/kv_store/recurrent_view.cuh"
#include "espalier/cuda/model/attention/tree_attention.cuh"
#include "espalier/cuda/model/llama/array_pieces.cuh"
#include "espalier/cuda/model/llama/embed.cuh"
#include "espalier/cuda/model/llama/matrix_products.cuh"
#include "espalier/cuda/model/llama/model_weights.cuh"
#include "espalier/cuda/model/llama/number.cuh"
#include "espalier/cuda/model/llama/persistent_pass.cuh"
#include "espalier/cuda/model/llama/rotate.cuh"
#include "espalier/cuda/model/llama/step_launcher.cuh"
#include "espalier/model/llama/host_kv_store.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "espalier/model/llama/model_steps.hpp"

namespace espalier::cuda {

//! Options of llama_backend on the device.
struct llama_options {
  int max_rows = 257;                //!< most rows of a forward pass: 257 for 256 drafted nodes and their root
  int max_positions = 0;             //!< positions that are computed; 0: as many as the model has
  int max_context = 0;               //!< slots of a sequence of the cache; 0: 1025 more than the positions
  std::vector<int> hidden_layers{};  //!< layers, from 0, whose output stays readable after a forward pass
  //! tokens whose logits a pass gives, ascending, for a draft that proposes no others; empty: all. load() then reads
  //! no other rows of the output matrix
  std::vector<token_id> head_tokens{};
  bool batch_invariant = false;  //!< a row's bits do not depend on the batch: see the law of llama_backend
  int read_ahead_bytes = -1;     //!< bytes of the next product's weights that the kernel before the product brings
                                 //!< into the second-level cache; -1: a quarter of that cache, but 0 before
                                 //!< compute capability 9.0

  static constexpr void describe(auto see) {
    see(option{"max_rows", &llama_options::max_rows, "rows of the longest forward pass", 1, 1 << 16});
    see(option{"read_ahead_bytes", &llama_options::read_ahead_bytes, "of the next product's weights", -1, 1 << 30});
    see(option{"max_context", &llama_options::max_context, "slots of a sequence of the cache", 0, 1 << 26});
  }
};

//! A transformer on the device. It loads the same models from the same files as espalier::llama_backend on the host.
//! Models with recurrent layers need a recurrent_kv.
//!
//! Weights, keys, values and activations are NumberT; the residual stream, norms and all sums are float, and so are the
//! logits, unless LogitT says otherwise. cuBLASLt computes the products, AttentionT the attention, and kernels of the
//! library the steps between them.
//!
//! On compute capability 9.0 and later, the library's kernels may begin while the kernel before them ends; a product of
//! cuBLASLt begins when all kernels before it have ended. The library's kernels use little of the memory's bandwidth,
//! so they ask for the first columns of the next product's weights, which are then in the second-level cache when the
//! product begins.
//!
//! If NumberT has 16 bits, AttentionT is tree_attention, and persistent_pass::fits() is true (the weights are then so
//! small that they stay in the second-level cache), each pass is one launch of persistent_pass instead.
//!
//!     auto target = cuda::llama_backend<__nv_bfloat16>::load("models/target", {.max_rows = 257});
//!
//! Shapes      path: what model_files::open takes; logits [n_outputs][columns()]
//! Complexity  a pass is 3 + 9 n_layers launches and products, whatever the batch holds. GPT-NeoX with a parallel
//!             residual has one a layer fewer, OLMo one a layer more, mixtures of experts two, or five with a shared
//!             expert, recurrent layers two or three, gates behind attention one. There is one more if the last layer
//!             is among hidden_layers, one if logits are capped, and one a layer if attention divides the
//!             context. Products run for the least planned number of rows that is enough for the batch. Planned are the
//!             numbers of forward_bucket(), max_rows, and those that reserve() has added. No allocation, no search for
//!             algorithms, no synchronisation: a graph can capture it
//! Law         the laws of Backend, within rounding. The same batch gives the same bits. A row's bits do not depend on
//!             the numbers in other rows. They depend on the number of rows: by it cuBLASLt chooses algorithms, and
//!             attention the parts of a context. With batch_invariant a row's bits depend on its own token, the tokens
//!             that it sees, and their positions, and on nothing else. They are the same in plain decoding, in a tree
//!             with its nodes in any order, and in a prompt cut anywhere, so greedy texts are those of plain decoding,
//!             token for token. For that each product keeps one algorithm, which does not divide sums, and attention
//!             sums by position: tree_attention does so, and another AttentionT must if
//!             attention_shape::batch_invariant is set
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
  using weight_number = NumberT;  //!< type of weights, keys and values
  using weights_type = model_weights<NumberT>;

  static llama_backend load(const std::string& path, const llama_options& options = {}) {
    const model_files files = model_files::open(path);
    const model_config config = files.config.with_head_tokens(options.head_tokens);
    return llama_backend(config, weights_type::load(config, *files.tensors), options);
  }

  llama_backend(const model_config& config, weights_type weights, const llama_options& options = {})
      : llama_backend(config, std::make_shared<const weights_type>(std::move(weights)), options) {}

  //! Makes a transformer that shares another one's weights, so that memory holds them once. It does not use option
  //! head_tokens: the config has it.
  llama_backend(const model_config& config, std::shared_ptr<const weights_type> weights,
                const llama_options& options = {})
      : config_(config),
        weights_(std::move(weights)),
        max_rows_(require_options(options).max_rows),
        max_positions_(config.positions(options.max_positions)),
        hidden_layers_(options.hidden_layers),
        read_ahead_bytes_(checked_read_ahead(options)),
        steps_(config, options.hidden_layers),
        rotary_(config, max_positions_),
        attention_(make_attention(config, options)),
        products_(detail::data_type_of<NumberT>, options.batch_invariant) {
    for (const int layer : hidden_layers_)
      require_option("hidden_layers", layer, 0, config_.n_layers - 1);
    if (!config.head_tokens.empty()) tokens_ = device_array<token_id>(std::span<const token_id>(config.head_tokens));
    place_buffers();
    activations_.allocate(), floats_.allocate(), logits_memory_.allocate(), chosen_.allocate();
    place_buffers();
    if constexpr (may_persist) make_persistent();
    if (!persistent_) {
      add_products();
      products_.plan_up_to(max_rows_);
    }
    // A pass also computes rows that no batch has written: they must hold numbers.
    activations_.zero(nullptr), floats_.zero(nullptr), logits_memory_.zero(nullptr);
    require(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  int vocab_size() const { return config_.vocab_size; }
  //! Number of columns of the logits.
  int columns() const { return config_.columns(); }
  //! The token of each column of the logits, in the memory of the device; null: columns are tokens.
  const token_id* tokens() const { return tokens_.data(); }
  int max_rows() const { return max_rows_; }
  int max_positions() const { return max_positions_; }
  const model_config& config() const { return config_; }
  const std::vector<int>& hidden_layers() const { return hidden_layers_; }
  std::size_t weight_bytes() const { return weights_->bytes(); }
  //! The weights, to share with a draft model, which uses the embedding and the output matrix, or with another
  //! transformer.
  std::shared_ptr<const weights_type> weights() const { return weights_; }

  //! Plans products for exactly this number of rows, which is worth it if many batches have so many rows or outputs. A
  //! graph cannot capture it.
  void reserve(int rows) {
    require_option("rows", rows, 1, max_rows_);
    if (!persistent_) products_.plan(rows);
  }

  //! Computes a pass and returns the logits of the rows in batch.outputs; if that is null, output i is row i.
  template <class KVStoreT>
  requires requires(KVStoreT& kv) {
    { kv.view() } -> std::same_as<kv_view<NumberT>>;
  }
  vocab_rows<LogitT> forward(KVStoreT& kv, const forward_batch_view& batch, cudaStream_t stream) {
    espalier::detail::check_recurrent(kv, config_.recurrent_shape());
    const kv_view<NumberT> cache = kv.view();
    check(cache, batch);
    recurrent_view states;
    if constexpr (requires { kv.states(); }) states = kv.states();
    if (batch.n_rows > 0) run(cache, states, batch, stream);
    return {memory_.logits, batch.n_outputs, columns()};
  }

  //! The residual stream after `layer`, before the final norm, of the rows of the last batch.
  //!
  //! Shapes      [n_rows][hidden_size], in the memory of the device, complete when the work in the stream is; always
  //!             the same address
  //! Errors      option_error if the layer is not among options.hidden_layers
  const float* hidden(int layer) const {
    const float* found = kept(layer);
    if (found == nullptr) raise<option_error>("option hidden_layers does not list layer ", layer, ".");
    return found;
  }

  //! Length of a row of hidden_states(); 0 unless options.hidden_layers lists the last layer.
  int hidden_size() const { return kept(config_.n_layers - 1) != nullptr ? config_.hidden_size : 0; }
  //! The residual stream after the last layer; shapes and errors are those of hidden().
  const float* hidden_states() const { return hidden(config_.n_layers - 1); }

 private:
  using memory_type = detail::model_memory<NumberT, LogitT>;
  using pass_type = persistent_pass<NumberT, LogitT>;

  static constexpr bool may_persist = sizeof(NumberT) == 2 && std::is_same_v<AttentionT, tree_attention<NumberT>>;

  static AttentionT make_attention(const model_config& config, const llama_options& options) {
    attention_shape shape;
    shape.n_heads = config.n_heads;
    shape.n_kv_heads = config.n_kv_heads;
    shape.head_dim = config.head_dim;
    shape.max_rows = options.max_rows;
    shape.max_context = attention_shape::context(options.max_context, config.positions(options.max_positions));
    shape.query_stride = config.projected_size();
    shape.batch_invariant = options.batch_invariant;
    return AttentionT(shape);
  }

  // Returns how many bytes of the next product's weights are asked for: a part of the second-level cache, so that the
  // other data in it stays.
  static std::size_t checked_read_ahead(const llama_options& options) {
    if (options.read_ahead_bytes >= 0) return static_cast<std::size_t>(options.read_ahead_bytes);
    int device = 0, major = 0, cache = 0;
    require(cudaGetDevice(&device), "cudaGetDevice");
    require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
    require(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device), "cudaDeviceGetAttribute");
    return major >= 9 ? static_cast<std::size_t>(cache) / 4 : 0;
  }

  void make_persistent() {
    if (!pass_type::fits(config_, steps_, max_rows_)) return;
    persistent_.emplace(config_, steps_, *weights_, rotary_.all, memory_);
    for (const int layer : hidden_layers_)
      persistent_->keep(layer, kept(layer));
  }

  void add_products() {
    numbers_.add_layers(products_, config_, detail::data_type_of<NumberT>);
    numbers_.head = products_.add(columns(), config_.hidden_size, detail::data_type_of<LogitT>, false);
  }

  void place_buffers() {
    const auto size = [&](int width) { return static_cast<std::size_t>(max_rows_) * static_cast<std::size_t>(width); };
    memory_.take_layers(config_, max_rows_, activations_, floats_, chosen_);
    hidden_ = floats_.take(size(config_.hidden_size) * hidden_layers_.size());
    memory_.logits = logits_memory_.take(size(columns()));
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
    if (kv.n_layers != config_.n_attention_layers() || kv.row_size != config_.kv_size()) {
      raise<input_error>("the cache has ", kv.n_layers, " layers of ", kv.row_size, " numbers a row, but the model ",
                         config_.n_attention_layers(), " of ", config_.kv_size(), ".");
    }
  }

  void run(const kv_view<NumberT>& kv, const recurrent_view& states, const forward_batch_view& batch,
           cudaStream_t stream) {
    if constexpr (may_persist) {
      if (persistent_) return persistent_->run(kv, batch, stream);
    }
    place here{{products_, memory_}, *this, states};
    detail::step_launcher<NumberT, LogitT, AttentionT, weights_type, place>{
        steps_, config_, products_, numbers_, rotary_, &attention_, *weights_, memory_, read_ahead_bytes_, here}
        .run(steps_.all(), kv, batch, stream);
  }

  // The PlaceT of step_launcher.
  struct place : detail::whole_place<NumberT, LogitT> {
    const llama_backend& of;
    const recurrent_view& states;

    void embed(const forward_batch_view& batch, cudaStream_t stream) const {
      const model_config& c = of.config_;
      detail::embed<NumberT>(
          {batch.tokens, of.weights_->embedding, c.vocab_size, c.hidden_size, of.memory_.stream, 0, c.embedding_scale},
          batch.n_rows, stream);
    }
    float* kept(int layer) const { return of.kept(layer); }
  };

  model_config config_;
  std::shared_ptr<const weights_type> weights_;
  int max_rows_;
  int max_positions_;
  std::vector<int> hidden_layers_;
  std::size_t read_ahead_bytes_;
  detail::model_steps steps_;
  detail::rotary_tables rotary_;
  AttentionT attention_;
  matrix_products products_;
  detail::step_products numbers_;

  device_array<token_id> tokens_;

  detail::array_pieces<NumberT> activations_;
  detail::array_pieces<float> floats_;
  detail::array_pieces<LogitT> logits_memory_;
  detail::array_pieces<std::int32_t> chosen_;
  memory_type memory_;       // max_rows rows of each array
  float* hidden_ = nullptr;  // [hidden_layers][max_rows][hidden_size]
  std::optional<pass_type> persistent_;
};

//! Makes a cache on the device for any model of llama_backend, with recurrent layers or without: `n_sequences` of
//! `capacity` tokens each, with room for `rows` tokens after a recurrent state.
//!
//! Errors      option_error as the constructor of recurrent_kv
template <class NumberT>
recurrent_kv<NumberT> device_cache(const model_config& config, std::int32_t n_sequences, std::int32_t capacity,
                                   std::int32_t rows = 256) {
  return {config.n_attention_layers(), config.kv_size(), config.recurrent_shape(), n_sequences, capacity, rows};
}

}  // namespace espalier::cuda
