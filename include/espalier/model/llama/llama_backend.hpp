// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/backend.hpp"
#include "espalier/core/batch_check.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/llama/attention.hpp"
#include "espalier/model/llama/attention_tasks.hpp"
#include "espalier/model/llama/elementwise.hpp"
#include "espalier/model/llama/host_kv_store.hpp"
#include "espalier/model/llama/llama_options.hpp"
#include "espalier/model/llama/mamba_block.hpp"
#include "espalier/model/llama/matrix_rows.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "espalier/model/llama/model_weights.hpp"
#include "espalier/model/llama/product_team.hpp"
#include "espalier/model/llama/rotary_table.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/model/llama/weight_matrix.hpp"

namespace espalier {

//! A transformer on the host: Llama 2 and 3, SmolLM2, Mistral, Qwen2, Qwen2.5, Qwen3, Gemma 1 to 3 and GPT-NeoX, from
//! GGUF files and Hugging Face folders, and Bamba, whose layers are Mamba-2 but for a few, from folders, over a
//! HostRecurrentStore. Weights are held as their file has them, quantised or not, or as option
//! `weights` says; all else is F32. Option `arithmetic` chooses how quantised weights are multiplied: exactly, so that
//! logits are bitwise those of the weights as floats, or with activations rounded to 8 bits, which costs 0.004
//! nats a token and is two to three and a half times as fast as floats where it was measured: docs/benchmarks.md.
//!
//! Shapes      path: what model_files::open takes; logits [n_outputs][vocab_size]
//! Complexity  one pass reads the weights from memory once for up to a dozen rows, and from the cache for more; forward
//!             allocates when a larger cache comes along than any before, and at no other time
//! Law         Backend's, bitwise: the row of a node does not depend on the batch it is in, on the cache slots, or on
//!             the number of threads
//! Errors      load: model_error for files that do not fit, option_error. forward: input_error for more than max_rows()
//!             rows, a token outside the vocabulary, a position beyond the last, or a batch that contradicts itself;
//!             nothing has happened then. NaN weights give NaN logits.
//! Pre         one forward at a time
class llama_backend {
 public:
  static llama_backend load(const std::string& path, const llama_options& options = {}) {
    const model_files files = model_files::open(path);
    return llama_backend(files.config,
                         model_weights::load(files.config, *files.tensors, require_options(options).weights), options);
  }

  llama_backend(const model_config& config, model_weights weights, const llama_options& options)
      : llama_backend(config, std::make_shared<const model_weights>(std::move(weights)), options) {}

  //! Over the weights of another one, which are held once.
  llama_backend(const model_config& config, std::shared_ptr<const model_weights> weights, const llama_options& options)
      : config_(config),
        weights_(std::move(weights)),
        max_rows_(require_options(options).max_rows),
        max_positions_(config.positions(options.max_positions)),
        hidden_layers_(options.hidden_layers),
        rotary_(max_positions_, config.rotary_dims, config.rope_theta, config.scaling),
        local_rotary_(config.local_rope_theta > 0.0 ? max_positions_ : 0, config.rotary_dims, config.local_rope_theta) {
    for (const int layer : hidden_layers_)
      require_option("hidden_layers", layer, 0, config_.n_layers - 1);
    const int hardware =
        std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, thread_team::most_threads);
    team_ = &thread_team::shared(options.threads > 0 ? options.threads : hardware);
    workers_.assign(static_cast<std::size_t>(team_->n_threads()), detail::attention_worker(config_.head_dim));
    const int heads = config_.n_heads + 2 * config_.n_kv_heads;
    whole_heads_ =
        heads % team_->n_threads() == 0 && heads / team_->n_threads() * config_.head_dim % weight_matrix::granule == 0;
    mamba_ = {config_.mamba, team_->n_threads(), config_.norm_epsilon};
    products_ = {*team_, max_rows_, (std::max)({config_.hidden_size, config_.mixed_size(), config_.intermediate_size}),
                 options.arithmetic};
    place_buffers();
    buffers_ = detail::float_block(buffers_.used(), false);
    place_buffers();
  }

  int vocab_size() const { return config_.vocab_size; }
  int max_rows() const { return max_rows_; }
  int max_positions() const { return max_positions_; }
  const model_config& config() const { return config_; }
  const std::vector<int>& hidden_layers() const { return hidden_layers_; }
  int n_threads() const { return team_->n_threads(); }
  std::size_t weight_bytes() const { return weights_->bytes(); }
  //! For a block draft, which borrows the embedding and the output matrix, and for a second one over the same weights.
  std::shared_ptr<const model_weights> weights() const { return weights_; }

  template <HostKVStore KVStoreT>
  logits_view forward(KVStoreT& kv, const forward_batch_view& batch) {
    detail::check_recurrent(kv, config_.recurrent_shape());
    detail::check_store(kv, batch, config_.n_attention_layers(), config_.kv_size());
    detail::check_batch(batch, {max_rows_, config_.vocab_size, max_positions_, kv.capacity()});
    if constexpr (HostRecurrentStore<KVStoreT>) mamba_.begin(kv, batch);
    for (detail::attention_worker& worker : workers_)
      worker.reserve(kv.capacity());
    team_->run([&](int thread) { compute(thread, kv, batch); });
    if constexpr (HostRecurrentStore<KVStoreT>) mamba_.end(kv);
    return {logits_, static_cast<std::int32_t>(batch.outputs.size()), config_.vocab_size};
  }

  //! Numbers of hidden_state(); 0 unless options.hidden_layers lists the last layer.
  int hidden_size() const {
    const bool kept =
        std::find(hidden_layers_.begin(), hidden_layers_.end(), config_.n_layers - 1) != hidden_layers_.end();
    return kept ? config_.hidden_size : 0;
  }
  //! What the last layer leaves of a row of the last batch, before the final norm.
  std::span<const float> hidden_state(int row) const { return hidden(config_.n_layers - 1, row); }

  //! What `layer` added to the stream of a row of the last batch: the residual stream after it, before the final norm.
  //!
  //! Shapes      [hidden_size], valid until the next forward
  //! Errors      option_error if the layer is not among options.hidden_layers
  std::span<const float> hidden(int layer, int row) const {
    const auto found = std::find(hidden_layers_.begin(), hidden_layers_.end(), layer);
    if (found == hidden_layers_.end()) raise<option_error>("option hidden_layers does not list layer ", layer, ".");
    require_option("row", row, 0, max_rows_ - 1);
    return {hidden_ + ((found - hidden_layers_.begin()) * max_rows_ + row) * config_.hidden_size,
            static_cast<std::size_t>(config_.hidden_size)};
  }

 private:
  using layer_type = model_weights::layer_type;
  using norm_type = model_weights::norm_type;
  using linear_type = model_weights::linear_type;

  // Up to here, all threads computing the same norms is faster than a barrier.
  static constexpr int alone_rows = 8;

  void place_buffers() {
    const auto rows = [&](int width, bool there = true) {
      return there ? buffers_.take(static_cast<std::size_t>(max_rows_) * static_cast<std::size_t>(width)) : nullptr;
    };
    stream_ = rows(config_.hidden_size);
    normed_ = rows(config_.hidden_size);
    mlp_normed_ = rows(config_.hidden_size, config_.parallel_residual);
    own_normed_ = buffers_.take(static_cast<std::size_t>(alone_rows * (config_.parallel_residual ? 2 : 1)) *
                                static_cast<std::size_t>(team_->n_threads() * config_.hidden_size));
    hidden_ = rows(config_.hidden_size * static_cast<int>(hidden_layers_.size()));
    // The logits come when the layers are done with their rows, and lie where those lay.
    const std::size_t layers_begin = buffers_.used();
    projected_ = rows((std::max)(config_.projected_size(), config_.mamba.projected()));
    attended_ = rows(config_.mixed_size());
    gate_ = rows(config_.intermediate_size, config_.gated_mlp);
    up_ = rows(config_.intermediate_size);
    logits_ = projected_;
    const std::size_t logits_end =
        layers_begin + static_cast<std::size_t>(max_rows_) * static_cast<std::size_t>(config_.vocab_size);
    if (logits_end > buffers_.used()) buffers_.take(logits_end - buffers_.used());
  }

  // All of a pass as one thread sees it. Between barriers, threads write disjoint parts.
  template <class KVStoreT>
  void compute(int thread, KVStoreT& kv, const forward_batch_view& batch) {
    const int n = batch.n_rows();
    const auto [first_row, last_row] = team_->share(thread, n);
    for (int row = first_row; row < last_row; ++row) {
      float* to = stream_ + at(row, config_.hidden_size);
      weights_->embed(batch.tokens[static_cast<std::size_t>(row)], to);
      if (config_.embedding_scale != 1.0F) detail::multiply_by(to, config_.hidden_size, config_.embedding_scale);
    }
    team_->barrier();
    for (int i = 0, n_recurrent = 0; i < config_.n_layers; ++i) {
      const layer_type& layer = weights_->layers[static_cast<std::size_t>(i)];
      if (thread == 0) team_->reset_tickets();
      const float* mlp_input = nullptr;
      if (config_.parallel_residual) mlp_input = normalise(thread, layer.mlp_norm, n, mlp_normed_);
      const float* input = normalise(thread, layer.attention_norm, n, normed_);
      multiply(thread, layer.query_key_value, products_.prepare(thread, layer.query_key_value.matrix, input, n),
               projected_, layer.attention_out);
      if (config_.is_recurrent(i)) {
        team_->barrier();
        if constexpr (HostRecurrentStore<KVStoreT>)
          mamba_.run(*team_, thread, layer.mamba, n_recurrent, kv, batch, projected_, attended_);
        ++n_recurrent;
      } else {
        if (!whole_heads_) team_->barrier();
        // No model with windows has recurrent layers.
        rotate(thread, layer, i - n_recurrent, kv, batch);
        team_->barrier();
        attend(thread, i - n_recurrent, kv, batch);
      }
      team_->barrier();
      add_output(thread, layer.attention_out, layer.attention_out_norm, attended_, n, layer.up);
      if (!config_.parallel_residual) {
        team_->barrier();
        mlp_input = normalise(thread, layer.mlp_norm, n, normed_);
      }
      activate(thread, layer, mlp_input, n);
      team_->barrier();
      const bool last = i + 1 == config_.n_layers;
      add_output(thread, layer.down, layer.mlp_out_norm, config_.gated_mlp ? gate_ : up_, n,
                 last ? weights_->head : weights_->layers[static_cast<std::size_t>(i) + 1].query_key_value);
      team_->barrier();
      keep_hidden(i, first_row, last_row);
    }
    const auto n_outputs = static_cast<int>(batch.outputs.size());
    const auto [first_output, last_output] = team_->share(thread, n_outputs);
    for (int i = first_output; i < last_output; ++i) {
      normalise(weights_->final_norm, batch.outputs[static_cast<std::size_t>(i)], normed_ + at(i, config_.hidden_size));
    }
    team_->barrier();
    multiply(thread, weights_->head, products_.prepare(thread, weights_->head.matrix, normed_, n_outputs), logits_,
             weights_->layers.front().query_key_value);
    const auto [begin, end] = products_.outputs_of(thread, weights_->head.matrix);
    for (int i = 0; i < n_outputs && config_.logit_cap > 0.0F; ++i)
      detail::soft_cap(logits_ + at(i, config_.vocab_size) + begin, end - begin, config_.logit_cap);
  }

  static std::ptrdiff_t at(int row, int width) { return static_cast<std::ptrdiff_t>(row) * width; }

  void normalise(const norm_type& norm, int row, float* to) const {
    const float* from = stream_ + at(row, config_.hidden_size);
    if (norm.bias) {
      detail::layer_norm(from, config_.hidden_size, norm.scale, norm.bias, config_.norm_epsilon, to);
    } else {
      detail::rms_norm(from, config_.hidden_size, norm.scale, config_.norm_epsilon, to);
    }
  }

  // All rows, into `shared` by the threads together, or, where that costs less than to wait for one another, by each
  // thread into rows of its own.
  const float* normalise(int thread, const norm_type& norm, int n, float* shared) {
    const bool alone = n <= alone_rows;
    float* to = alone ? own_normed_ + at(thread * alone_rows, config_.hidden_size) : shared;
    if (alone && config_.parallel_residual && shared == mlp_normed_) {
      to += at(team_->n_threads() * alone_rows, config_.hidden_size);
    }
    const auto [first, last] = alone ? std::pair(0, n) : team_->share(thread, n);
    for (int row = first; row < last; ++row)
      normalise(norm, row, to + at(row, config_.hidden_size));
    if (!alone) team_->barrier();
    return to;
  }

  // y = W x + bias
  void multiply(int thread, const linear_type& part, const detail::matrix_rows& x, float* y, const linear_type& next) {
    const int outputs = part.matrix.outputs();
    const auto [begin, end] = products_.outputs_of(thread, part.matrix);
    for (int row = 0; row < x.rows && part.bias; ++row) {
      std::copy(part.bias + begin, part.bias + end, y + at(row, outputs) + begin);
    }
    products_.multiply(thread, part.matrix, x, y, part.bias != nullptr, next.matrix);
  }

  // stream += W x + bias, or its norm.
  void add_output(int thread, const linear_type& part, const float* norm, const float* x, int rows,
                  const linear_type& next) {
    if (!norm) return add_product(thread, part, x, rows, next);
    multiply(thread, part, products_.prepare(thread, part.matrix, x, rows), normed_, next);
    team_->barrier();
    const int width = config_.hidden_size;
    const auto [first, last] = team_->share(thread, rows);
    for (int row = first; row < last; ++row) {
      float *out = normed_ + at(row, width), *stream = stream_ + at(row, width);
      detail::rms_norm(out, width, norm, config_.norm_epsilon, out);
      std::transform(out, out + width, stream, stream, std::plus<>());
    }
  }

  // stream += W x + bias
  void add_product(int thread, const linear_type& part, const float* x, int rows, const linear_type& next) {
    const int outputs = part.matrix.outputs();
    const auto [begin, end] = products_.outputs_of(thread, part.matrix);
    for (int row = 0; row < rows && part.bias; ++row) {
      float* y = stream_ + at(row, outputs);
      for (int o = begin; o < end; ++o)
        y[o] += part.bias[o];
    }
    products_.multiply(thread, part.matrix, products_.prepare(thread, part.matrix, x, rows), stream_, true,
                       next.matrix);
  }

  // Rotates queries in place, and keys on their way into the cache. A thread takes the heads that it computed, where
  // those are whole.
  template <class KVStoreT>
  void rotate(int thread, const layer_type& layer, int layer_index, KVStoreT& kv, const forward_batch_view& batch) {
    const int heads = config_.n_heads + 2 * config_.n_kv_heads;
    const auto [first, last] = team_->share(thread, heads);
    for (const batch_sequence& sequence : batch.sequences) {
      for (int row = sequence.row_begin; row < sequence.row_end; ++row) {
        for (int head = first; head < last; ++head) {
          rotate_head(layer, layer_index, kv, batch, sequence.sequence, row, head);
        }
      }
    }
  }

  template <class KVStoreT>
  void rotate_head(const layer_type& layer, int layer_index, KVStoreT& kv, const forward_batch_view& batch,
                   int sequence, int row, int head) const {
    const int dim = config_.head_dim;
    const int position = batch.positions[static_cast<std::size_t>(row)],
              slot = batch.slots[static_cast<std::size_t>(row)];
    float* x = projected_ + at(row, config_.query_size() + 2 * config_.kv_size()) + at(head, dim);
    const bool local = config_.local_rope_theta > 0.0 && config_.is_windowed(layer_index);
    const detail::rotary_table& rotary = local ? local_rotary_ : rotary_;
    const auto turn = [&](const float* norm, float factor, float* to) {
      if (norm) detail::rms_norm(x, dim, norm, config_.norm_epsilon, x);
      detail::rotate_head(x, dim, config_.rotary_dims, rotary.cosine(position), rotary.sine(position), factor, to);
    };
    const int kv_head = head - config_.n_heads, value_head = kv_head - config_.n_kv_heads;
    if (kv_head < 0) {
      turn(layer.query_norm, config_.score_scale(), x);
    } else if (value_head < 0) {
      turn(layer.key_norm, 1.0F, kv.key(layer_index, sequence, slot) + at(kv_head, dim));
    } else {
      std::copy_n(x, dim, kv.value(layer_index, sequence, slot) + at(value_head, dim));
    }
  }

  template <class KVStoreT>
  void attend(int thread, int layer, KVStoreT& kv, const forward_batch_view& batch) {
    detail::attention_worker& worker = workers_[static_cast<std::size_t>(thread)];
    detail::take_attention_tasks(*team_, layer, config_.n_heads, config_.n_kv_heads, batch,
                                 [&](const batch_sequence& sequence, detail::attention_worker::task task) {
                                   task.window = config_.window_of(layer);
                                   task.cap = config_.attention_cap;
                                   worker.attend(kv, batch, sequence, task, projected_,
                                                 config_.query_size() + 2 * config_.kv_size(), attended_,
                                                 config_.query_size());
                                 });
  }

  // The first half of the MLP. A thread's columns of gate and up are the same, so it needs no other's.
  void activate(int thread, const layer_type& layer, const float* x, int n) {
    const int width = config_.intermediate_size;
    const auto [begin, end] = products_.outputs_of(thread, layer.up.matrix);
    const weight_matrix& either = layer.gate.matrix.quantised() ? layer.gate.matrix : layer.up.matrix;
    const detail::matrix_rows rows = products_.prepare(thread, either, x, n);
    multiply(thread, layer.up, rows, up_, config_.gated_mlp ? layer.gate : layer.down);
    if (config_.gated_mlp) multiply(thread, layer.gate, rows, gate_, layer.down);
    for (int row = 0; row < n; ++row) {
      const std::ptrdiff_t first = at(row, width) + begin;
      if (!config_.gated_mlp) {
        detail::gelu(up_ + first, end - begin);
      } else if (config_.gelu_gate) {
        detail::gelu_tanh_times(gate_ + first, up_ + first, end - begin);
      } else {
        detail::silu_times(gate_ + first, up_ + first, end - begin);
      }
    }
  }

  void keep_hidden(int layer, int first_row, int last_row) {
    for (std::size_t i = 0; i < hidden_layers_.size(); ++i) {
      if (hidden_layers_[i] != layer) continue;
      std::copy(stream_ + at(first_row, config_.hidden_size), stream_ + at(last_row, config_.hidden_size),
                hidden_ + at(static_cast<int>(i) * max_rows_ + first_row, config_.hidden_size));
    }
  }

  model_config config_;
  std::shared_ptr<const model_weights> weights_;
  int max_rows_;
  int max_positions_;
  std::vector<int> hidden_layers_;
  detail::rotary_table rotary_;
  detail::rotary_table local_rotary_;  // of layers with a window, where it is another
  thread_team* team_ = nullptr;
  bool whole_heads_ = false;  // a thread's outputs of query_key_value are whole heads
  std::vector<detail::attention_worker> workers_;
  detail::mamba_block mamba_;  // of recurrent layers
  detail::product_team products_;
  detail::float_block buffers_;
  float* stream_ = nullptr;      // [max_rows][hidden_size]
  float* normed_ = nullptr;      // [max_rows][hidden_size]: inputs of products, and outputs to be normalised
  float* mlp_normed_ = nullptr;  // [max_rows][hidden_size], where the residual is parallel
  float* own_normed_ = nullptr;  // [n_threads][alone_rows][hidden_size], twice where the residual is parallel
  float* projected_ = nullptr;   // [max_rows][query_size + 2 kv_size], or what a recurrent layer projects
  float* attended_ = nullptr;    // [max_rows][query_size], or its inner channels
  float* gate_ = nullptr;        // [max_rows][intermediate_size]
  float* up_ = nullptr;          // [max_rows][intermediate_size]
  float* logits_ = nullptr;      // [max_rows][vocab_size], over projected_ and what follows it
  float* hidden_ = nullptr;      // [hidden_layers][max_rows][hidden_size]
};

}  // namespace espalier
