// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "espalier/concepts/backend.hpp"
#include "espalier/core/batch_check.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/kv_store/recurrent.hpp"
#include "espalier/model/files/weight_storage.hpp"
#include "espalier/model/llama/faster_storage.hpp"
#include "espalier/model/llama/host_kv_store.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "espalier/model/llama/model_steps.hpp"
#include "espalier/model/llama/model_weights.hpp"
#include "espalier/model/llama/product_team.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/model/llama/transformer_pass.hpp"

namespace espalier {

//! Options of a llama_backend.
struct llama_options {
  int threads = 0;        //!< threads that compute a pass together; 0: as many as the hardware runs at once
  int max_rows = 320;     //!< most rows of a forward pass; 320 are enough for a tree of 256 nodes and pending tokens
  int max_positions = 0;  //!< positions that a text may have; 0: as many as the model has
  //! number of logits in a row, for a draft whose vocabulary is padded to another size than its target's; 0: the size
  //! of the model's own vocabulary. Tokens beyond the model's own have the logit minus infinity and are read as token 0
  int vocab_size = 0;
  //! tokens whose logits a pass gives, ascending, for a draft that proposes no others; empty: all. load() then reads
  //! no other rows of the output matrix. The embedding has all tokens, whatever is listed. Each must be below
  //! vocab_size
  std::vector<token_id> head_tokens{};
  //! first layers that a pass goes through, before the final norm and the head; 0: all of them. load() reads the
  //! weights of all layers
  int layers = 0;
  std::vector<int> hidden_layers{};  //!< layers, from 0, whose output stays readable after a forward pass
  bool apart = false;  //!< the model shares its threads only with models for which this is true, too, so that it and
                       //!< the others can compute at the same time: see `ahead`
  matrix_arithmetic arithmetic = matrix_arithmetic::exact;  //!< how products with weights are computed
  weight_storage weights = weight_storage::fastest;         //!< how the matrices that load() reads are held in memory

  static constexpr void describe(auto see) {
    see(option{"threads", &llama_options::threads, "threads; 0: one for each processor", 0, thread_team::most_threads});
    see(option{"max_rows", &llama_options::max_rows, "rows of the longest forward pass", 1, 1 << 16});
    see(option{"vocab_size", &llama_options::vocab_size, "logits of a row; 0: as many as the model has", 0, 1 << 24});
    see(option{"layers", &llama_options::layers, "first layers that a pass goes through; 0: all", 0, 1 << 12});
    see(option{"arithmetic", &llama_options::arithmetic, "products with weights"});
    see(option{"weights", &llama_options::weights, "how matrices are held"});
  }
};

//! A transformer on the host: Llama 2 and 3, SmolLM2, SmolLM3, Mistral, Mixtral, gpt-oss, Qwen2, Qwen2.5, Qwen3 with
//! experts or without, Gemma 1 to 3, GPT-NeoX, Phi-3, Phi-4-mini, OLMo 2 and 3, Granite and GLM-4, from GGUF files and
//! Hugging Face folders; and models most of whose layers are recurrent, which need a HostRecurrentStore: Qwen3-Next and
//! Qwen3.5 from both, Bamba from folders only. Matrices are held as option `weights` says. By default they are held as
//! the file has them or as floats: load() measures within a second which makes passes faster. All other weights are
//! F32. Option `arithmetic` chooses how weights are multiplied: exactly, so that logits are bitwise those of the
//! weights as floats, or as integers, with weights of 8 bits and activations of 16 bits: docs/benchmarks.md says what
//! that costs and how fast it is.
//!
//! Shapes      path: what model_files::open takes; logits [n_outputs][vocab_size()], or, with option head_tokens, a
//!             column for each of these
//! Complexity  a pass reads the weights from main memory once, but of a mixture of experts only those that its rows
//!             use; with more than about a dozen rows it reads them again, from the processor's cache. forward
//!             allocates only if the cache is larger than any before, if a batch of a model with recurrent layers has
//!             more sequences than any before or, with option vocab_size, if a batch has more rows than any before
//! Law         Backend's, bitwise: the row of a node does not depend on the batch it is in, on the cache slots, or on
//!             the number of threads
//! Errors      load: model_error for files that do not fit, option_error for options out of range. forward: input_error
//!             for more than max_rows() rows, a token outside the vocabulary, a position beyond the last, a cache of
//!             another shape, or a batch that contradicts itself; nothing has happened then. NaN weights give NaN
//!             logits.
//! Pre         one forward at a time
class llama_backend {
 public:
  static llama_backend load(const std::string& path, const llama_options& options = {}) {
    const model_files files = model_files::open(path);
    weight_storage storage = storage_for(require_options(options).arithmetic, options.weights);
    if (storage == weight_storage::fastest) storage = detail::faster_storage(*files.tensors, team_of(options));
    const model_config config = files.config.with_head_tokens(options.head_tokens);
    llama_backend loaded(config, model_weights::load(config, *files.tensors, storage), options);
    loaded.where_ = path;
    return loaded;
  }

  llama_backend(const model_config& config, model_weights weights, const llama_options& options)
      : llama_backend(config, std::make_shared<const model_weights>(std::move(weights)), options) {}

  //! Makes a backend that shares another backend's weights, so that memory holds them once. It does not use the options
  //! `weights` and `head_tokens`: the config has the latter.
  //!
  //! Errors      option_error for products of integers with weights that are not held as i8_rows, and for a token of
  //!             the config's head_tokens beyond option vocab_size
  llama_backend(const model_config& config, std::shared_ptr<const model_weights> weights, const llama_options& options)
      : config_(options.layers > 0 ? config.with_first_layers(options.layers) : config),
        weights_(std::move(weights)),
        options_(require_options(options)),
        vocab_size_(options.vocab_size > 0 ? options.vocab_size : config.vocab_size),
        max_positions_(config.positions(options.max_positions)),
        pass_(made_pass()) {
    if (!config_.head_tokens.empty() && config_.head_tokens.back() >= vocab_size_) {
      raise<option_error>("option head_tokens has token ", config_.head_tokens.back(),
                          ", but option vocab_size ends the vocabulary at ", vocab_size_ - 1, ".");
    }
    if (options.arithmetic == matrix_arithmetic::integer && !weights_->head.matrix.has_bytes())
      raise<option_error>(
          "option arithmetic is integer, but these weights were loaded for exact products: load them "
          "with weight_storage::i8_rows.");
  }

  int vocab_size() const { return vocab_size_; }
  //! The token of each column of the logits; empty: columns are tokens.
  std::span<const token_id> tokens() const { return config_.head_tokens; }
  int max_rows() const { return options_.max_rows; }
  int max_positions() const { return max_positions_; }
  const model_config& config() const { return config_; }
  const std::vector<int>& hidden_layers() const { return options_.hidden_layers; }
  //! The path that load() was given, for messages; "in memory" if the backend was made from weights.
  const std::string& where() const { return where_; }

  //! Makes the output of these layers, from 0, readable after a forward pass, too: for a drafter that reads it.
  //! Allocates, and ends the validity of logits and states.
  //!
  //! Errors      option_error for a layer that the model does not have
  void keep_hidden(std::span<const int> layers) {
    for (const int layer : layers)
      require_option("hidden_layers", layer, 0, config_.n_layers - 1);
    const std::size_t before = options_.hidden_layers.size();
    for (const int layer : layers) {
      std::vector<int>& kept = options_.hidden_layers;
      if (std::find(kept.begin(), kept.end(), layer) == kept.end()) kept.push_back(layer);
    }
    if (options_.hidden_layers.size() > before) pass_ = made_pass();
  }
  int n_threads() const { return pass_.team().n_threads(); }
  std::size_t weight_bytes() const { return weights_->bytes(); }
  //! Returns the weights, to share with a block draft, which uses their embedding and output matrix, or with a second
  //! backend.
  std::shared_ptr<const model_weights> weights() const { return weights_; }

  template <HostKVStore KVStoreT>
  logits_view forward(KVStoreT& kv, const forward_batch_view& batch) {
    detail::check_recurrent(kv, config_.recurrent_shape());
    detail::check_store(kv, batch, config_.n_attention_layers(), config_.kv_size());
    detail::check_batch(batch, {max_rows(), vocab_size_, max_positions_, kv.capacity()});
    one_process place;
    pass_.run(place, *weights_, kv, known_tokens(batch));
    return sized(
        {pass_.rows(detail::step_rows::logits), static_cast<std::int32_t>(batch.outputs.size()), config_.columns()});
  }

  //! Length of hidden_state(); 0 unless options.hidden_layers lists the last layer.
  int hidden_size() const { return pass_.keeps(config_.n_layers - 1) ? config_.hidden_size : 0; }
  //! Returns the residual stream of a row of the last batch after the last layer, before the final norm. Shapes and
  //! errors are those of hidden().
  std::span<const float> hidden_state(int row) const { return hidden(config_.n_layers - 1, row); }

  //! Returns the residual stream of a row of the last batch after `layer`, before the final norm.
  //!
  //! Shapes      [hidden_size], valid until the next forward
  //! Errors      option_error if the layer is not among options.hidden_layers; input_error for a row that the last
  //!             batch did not have
  std::span<const float> hidden(int layer, int row) const { return pass_.hidden(layer, row); }

 private:
  struct one_process {};  // the PlaceT of transformer_pass for one process: it has no members, so the pass makes every
                          // step

  detail::transformer_pass made_pass() const {
    return {config_, detail::model_steps(config_, options_.hidden_layers), team_of(options_),
            detail::pass_options{.max_rows = options_.max_rows,
                                 .max_positions = max_positions_,
                                 .arithmetic = options_.arithmetic,
                                 .max_inputs = (std::max)({config_.hidden_size, config_.mixed_size(),
                                                           config_.activated_size(), config_.mixture.size}),
                                 .vocab_size = config_.columns(),
                                 .hidden_layers = options_.hidden_layers}};
  }

  static thread_team& team_of(const llama_options& options) {
    return thread_team::shared(options.threads > 0 ? options.threads : thread_team::of_processors(), options.apart);
  }

  // Returns the batch with token 0 in place of tokens that are beyond the model's own vocabulary.
  forward_batch_view known_tokens(forward_batch_view batch) {
    if (vocab_size_ <= config_.vocab_size) return batch;
    tokens_.assign(batch.tokens.begin(), batch.tokens.end());
    for (token_id& token : tokens_)
      token = token < config_.vocab_size ? token : 0;
    batch.tokens = tokens_;
    return batch;
  }

  // Returns the logits in rows of vocab_size() numbers, or as they are if their columns are of some tokens alone.
  logits_view sized(logits_view own) {
    if (vocab_size_ == own.vocab || !tokens().empty()) return own;
    const auto size = static_cast<std::size_t>(vocab_size_);
    const std::size_t n = (std::min)(size, static_cast<std::size_t>(own.vocab));
    logits_.assign(static_cast<std::size_t>(own.n_rows) * size, -std::numeric_limits<float>::infinity());
    for (std::int32_t row = 0; row < own.n_rows; ++row)
      std::copy_n(own.row(row).data(), n, logits_.data() + static_cast<std::size_t>(row) * size);
    return {logits_.data(), own.n_rows, vocab_size_};
  }

  model_config config_;
  std::shared_ptr<const model_weights> weights_;
  llama_options options_;
  int vocab_size_;
  int max_positions_;
  std::string where_ = "in memory";
  detail::transformer_pass pass_;
  std::vector<token_id> tokens_;  // see known_tokens()
  std::vector<float> logits_;     // [outputs][vocab_size]; see sized()
};

//! Makes a cache for any model of llama_backend, with recurrent layers or without: `n_sequences` of `capacity` tokens
//! each.
//!
//! Errors      option_error as the constructor of recurrent_kv
inline recurrent_kv host_cache(const model_config& config, int n_sequences, int capacity,
                               const recurrent_options& options = {}) {
  return {config.n_attention_layers(), config.kv_size(), config.recurrent_shape(), n_sequences, capacity, options};
}

//! Makes a cache for any model of llama_backend whose sequences share n_pages pages of page_size tokens.
//!
//! Errors      option_error as the constructor of paged_recurrent_kv
inline paged_recurrent_kv host_cache(const model_config& config, int n_sequences, int capacity, int page_size,
                                     int n_pages, const recurrent_options& options = {}) {
  return paged_recurrent_kv(config.n_attention_layers(), config.kv_size(), config.recurrent_shape(), n_sequences,
                            capacity, page_size, n_pages, options);
}

}  // namespace espalier
