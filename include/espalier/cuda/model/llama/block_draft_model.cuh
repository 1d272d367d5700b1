// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/concepts/state_rows.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/cuda/model/attention/tree_attention.cuh"
#include "espalier/cuda/model/llama/activate.cuh"
#include "espalier/cuda/model/llama/array_pieces.cuh"
#include "espalier/cuda/model/llama/block_draft_rows.cuh"
#include "espalier/cuda/model/llama/block_draft_weights.cuh"
#include "espalier/cuda/model/llama/embed.cuh"
#include "espalier/cuda/model/llama/matrix_products.cuh"
#include "espalier/cuda/model/llama/model_weights.cuh"
#include "espalier/cuda/model/llama/normalise.cuh"
#include "espalier/cuda/model/llama/number.cuh"
#include "espalier/cuda/model/llama/rotate.cuh"
#include "espalier/model/files/safetensors_file.hpp"
#include "espalier/model/llama/block_draft_config.hpp"

namespace espalier::cuda {

//! A block-diffusion draft on the device: espalier::block_draft_model's twin, from the same folders. The target's
//! embedding goes in, its output matrix comes last; both are borrowed.
//!
//!     auto target = cuda::llama_backend<__half>::load("models/target", {.hidden_layers = {1, 3, 5}});
//!     cuda::block_diffusion drafter(cuda::block_draft_model<__half>::load("models/block", target));
//!
//! Numbers are as in llama_backend.
//!
//! Shapes      config.json and model.safetensors in the folder
//! Complexity  forward: one pass of length + 1 rows for each lane, 9 n_layers + 7 launches and products; read: one of
//!             2 n_layers + 4 for each 64 rows of a prefill, or for the paths of all lanes. No allocation, no
//!             synchronisation: a graph can capture both
//! Law         neither depends on what other rows hold
//! Errors      load: model_error for files that do not fit, themselves or the target; option_error for a target whose
//!             option hidden_layers lacks a layer; cuda_error
//! Source      Chen et al., DFlash, with a pending token of its own matrix; examples/models/block.py is the reference
template <class NumberT, class LogitT = float, class AttentionT = tree_attention<NumberT>>
class block_draft_model {
 public:
  using number = LogitT;
  using weights_type = block_draft_weights<NumberT>;

  //! What was read of each text: keys and values of each layer and the states that they come from, by position.
  struct context_type {
    std::int32_t max_texts = 0;
    device_array<NumberT> keys_values;  //!< [n_layers][places][keys, values][slots][kv_size]
    device_array<NumberT> states;       //!< [places][max_positions][hidden_size]
  };

  //! For rounds of so many texts at most.
  template <class TargetT>
  static block_draft_model load(const std::string& folder, const TargetT& target, std::int32_t max_texts = 1) {
    const block_draft_config config = block_draft_config::load(folder);
    espalier::detail::check_block_draft_target(config, target);
    safetensors_file file(folder + "/model.safetensors");
    return block_draft_model(config, weights_type::load(config, file), target, max_texts);
  }

  template <class TargetT>
  block_draft_model(const block_draft_config& config, weights_type weights, const TargetT& target,
                    std::int32_t max_texts = 1)
      : config_(config),
        max_texts_(max_texts),
        weights_(std::move(weights)),
        target_(target.weights()),
        vocab_size_(target.vocab_size()),
        max_positions_((std::min)(config.max_positions, target.max_positions())),
        rotary_(slots(), config.head_dim, config.rope_theta),
        attention_(shape_of_attention()),
        products_(detail::data_type_of<NumberT>, false) {
    require_option("max_texts", max_texts, 1, 4096);
    espalier::detail::check_block_draft_target(config, target);
    add_products();
    for (int lanes = 1, last = 0; last < max_texts; lanes *= 2) {
      last = (std::min)(lanes, max_texts);
      for (const int rows : {1, config.block_length, config.block_length + 1})
        products_.plan(last * rows);
    }
    products_.plan(most_rows());
    place_buffers();
    activations_.allocate(), floats_.allocate(), logits_memory_.allocate(), integers_.allocate();
    place_buffers();
    activations_.zero(nullptr), floats_.zero(nullptr), integers_.zero(nullptr);
    const auto all = static_cast<std::size_t>(max_texts) * static_cast<std::size_t>(config.block_length);
    std::vector<std::int32_t> written(all * static_cast<std::size_t>(config.block_length));
    auto next = written.begin();
    for (std::int32_t length = 1; length <= config.block_length; ++length) {
      auto row = next;
      for (std::int32_t lane = 0; lane < max_texts; ++lane, row += length)
        std::iota(row, row + length, lane * (length + 1) + 1);
      next += static_cast<std::ptrdiff_t>(all);
    }
    written_ = device_array<std::int32_t>(std::span<const std::int32_t>(written));
    require(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  int vocab_size() const { return vocab_size_; }
  int block_length() const { return config_.block_length; }
  int max_positions() const { return max_positions_; }
  int max_texts() const { return max_texts_; }
  const block_draft_config& config() const { return config_; }
  std::size_t weight_bytes() const { return weights_.bytes(); }

  //! Errors      option_error for more texts than the model was made for
  context_type make_context(std::int32_t max_texts) const {
    require_option("texts of a block draft", max_texts, 1, max_texts_);
    const auto texts = static_cast<std::size_t>(max_texts), kv = static_cast<std::size_t>(config_.kv_size());
    const auto layers = static_cast<std::size_t>(config_.n_layers);
    context_type context;
    context.max_texts = max_texts;
    context.keys_values = device_array<NumberT>(layers * texts * 2 * static_cast<std::size_t>(slots()) * kv);
    context.states = device_array<NumberT>(texts * static_cast<std::size_t>(max_positions_) *
                                           static_cast<std::size_t>(config_.hidden_size));
    return context;
  }

  //! Takes the target's hidden states of these rows of its last pass. Those beyond max_positions() are not needed.
  template <class BackendT>
  void read(context_type& context, const BackendT& backend, const state_rows& rows, cudaStream_t stream) {
    const std::int32_t at_once = (std::max)(1, most_rows() / rows.n_lanes());
    for (std::int32_t done = 0; done < rows.max; done += at_once)
      read_part(context, backend, rows.part(done, (std::min)(rows.max - done, at_once)), stream);
  }

  //! The logits of the `length` tokens after the last of each text. Beyond max_positions() they mean nothing.
  //!
  //! Shapes      [lanes][length][vocab_size], at the same address always
  //! Pre         the states of all tokens but the last were read; 1 <= length <= block_length()
  vocab_rows<LogitT> forward(context_type& context, const text_batch& texts, std::int32_t length, cudaStream_t stream) {
    const int n = length + 1, n_rows = texts.n * n, rows = products_.planned(n_rows);
    const detail::block_draft_rows lines = lines_;
    launch("open_block", detail::open_block<>, {.grid = texts.lanes(), .threads = detail::block_row_threads}, stream,
           lines, texts, n, max_positions_);
    begin_stream(context, texts.n, n, stream);
    const forward_batch_view batch =
        lines.view(texts.n, n, (std::max)(1, (std::min)(texts.max_context, max_positions_)));
    const kv_view<NumberT> kv = view_of(context);
    for (int i = 0; i < config_.n_layers; ++i) {
      const auto& layer = weights_.layers[static_cast<std::size_t>(i)];
      normalise(layer.attention_norm, n_rows, stream);
      products_.multiply(query_key_value_, layer.query_key_value, normed_, projected_, rows, stream);
      detail::rotate(rotate_job(i, config_.n_heads), kv, batch, stream);
      attention_.run(projected_, kv, i, batch, 1.0F / std::sqrt(static_cast<float>(config_.head_dim)), attended_,
                     stream);
      products_.multiply(attention_out_, layer.attention_out, attended_, stream_, rows, stream);
      normalise(layer.mlp_norm, n_rows, stream);
      products_.multiply(gate_up_, layer.gate_up, normed_, wide_, rows, stream);
      detail::activate<NumberT>({wide_, nullptr, activated_, config_.intermediate_size, true}, n_rows, stream);
      products_.multiply(down_, layer.down, activated_, stream_, rows, stream);
    }
    // The pending token's own row has no logits.
    const int written = texts.n * length;
    normalise(weights_.final_norm, written, stream, written_rows(length));
    products_.multiply(head_, target_->head.matrix, normed_, logits_, products_.planned(written), stream);
    return {logits_, written, vocab_size_};
  }

 private:
  static constexpr int read_rows = 64;  // of one pass of a prefill

  int slots() const { return max_positions_ + config_.block_length + 1; }
  int most_rows() const { return (std::max)(read_rows, max_texts_ * (config_.block_length + 1)); }

  attention_shape shape_of_attention() const {
    attention_shape shape;
    shape.n_heads = config_.n_heads;
    shape.n_kv_heads = config_.n_kv_heads;
    shape.head_dim = config_.head_dim;
    shape.max_rows = max_texts_ * (config_.block_length + 1);
    shape.max_context = slots();
    shape.query_stride = config_.query_size() + 2 * config_.kv_size();
    return shape;
  }

  void add_products() {
    const int width = config_.hidden_size, q = config_.query_size(), kv = config_.kv_size();
    constexpr cudaDataType_t numbers = detail::data_type_of<NumberT>;
    // The key and value rows begin where the query's end.
    const auto begin = static_cast<std::size_t>(q) * static_cast<std::size_t>(width) * sizeof(NumberT);
    const auto alignment = static_cast<std::uint32_t>((std::min)(std::size_t{256}, begin & (~begin + 1)));
    features_product_ = products_.add(width, features_size(), CUDA_R_32F, false);
    key_value_ = products_.add(2 * kv, width, numbers, false, alignment);
    pending_product_ = products_.add(width, width, CUDA_R_32F, false);
    query_key_value_ = products_.add(q + 2 * kv, width, numbers, false);
    attention_out_ = products_.add(width, q, CUDA_R_32F, true);
    gate_up_ = products_.add(2 * config_.intermediate_size, width, numbers, false);
    down_ = products_.add(width, config_.intermediate_size, CUDA_R_32F, true);
    head_ = products_.add(vocab_size_, width, detail::data_type_of<LogitT>, false);
  }

  int features_size() const { return static_cast<int>(config_.hidden_layers.size()) * config_.hidden_size; }

  void place_buffers() {
    const auto rows = [&](int width) {
      return static_cast<std::size_t>(most_rows()) * static_cast<std::size_t>(width);
    };
    features_ = activations_.take(rows(features_size()));
    normed_ = activations_.take(rows(config_.hidden_size));
    projected_ = activations_.take(rows(config_.query_size() + 2 * config_.kv_size()));
    attended_ = activations_.take(rows(config_.query_size()));
    wide_ = activations_.take(rows(2 * config_.intermediate_size));
    activated_ = activations_.take(rows(config_.intermediate_size));
    stream_ = floats_.take(rows(config_.hidden_size));
    const auto texts = static_cast<std::size_t>(max_texts_);
    root_ = floats_.take(texts * static_cast<std::size_t>(config_.hidden_size));
    logits_ = logits_memory_.take(texts * static_cast<std::size_t>(config_.block_length) *
                                  static_cast<std::size_t>(vocab_size_));
    static_assert(sizeof(batch_sequence) % sizeof(std::int32_t) == 0);
    lines_.positions = integers_.take(rows(1));
    lines_.sequence_of = integers_.take(rows(1));
    lines_.sequences =
        reinterpret_cast<batch_sequence*>(integers_.take(texts * sizeof(batch_sequence) / sizeof(std::int32_t)));
    lines_.mask = reinterpret_cast<std::uint32_t*>(integers_.take(rows((config_.block_length + 32) / 32)));
    lines_.pending = integers_.take(texts);
  }

  kv_view<NumberT> view_of(const context_type& context) const {
    kv_view<NumberT> kv;
    kv.data = context.keys_values.data();
    kv.layer_stride = std::int64_t{2} * context.max_texts * slots() * config_.kv_size();
    kv.page_size = slots();
    kv.max_pages = 1;
    kv.row_size = config_.kv_size();
    kv.n_layers = config_.n_layers;
    return kv;
  }

  template <class BackendT>
  void read_part(context_type& context, const BackendT& backend, const state_rows& part, cudaStream_t stream) {
    detail::gather_job<NumberT> job{};
    for (const int layer : config_.hidden_layers)
      job.hidden[job.n_layers++] = backend.hidden(layer);
    job.width = config_.hidden_size;
    job.max_positions = max_positions_;
    job.features = features_;
    const detail::block_draft_rows lines = lines_;
    const int n_lanes = part.n_lanes(), n_rows = n_lanes * part.max;
    launch("gather_states", detail::gather_states<NumberT>,
           {.grid = dim3(static_cast<unsigned>(part.max), static_cast<unsigned>(n_lanes)),
            .threads = detail::block_row_threads},
           stream, job, part, lines);
    const int rows = products_.planned(n_rows);
    products_.multiply(features_product_, weights_.features, features_, stream_, rows, stream);
    normalise(weights_.features_norm, n_rows, stream);
    launch("keep_states", detail::keep_states<NumberT>,
           {.grid = static_cast<unsigned>(n_rows), .threads = detail::block_row_threads}, stream, normed_,
           context.states.data(), config_.hidden_size, max_positions_, lines);
    const forward_batch_view batch = lines.view(n_lanes, part.max, 1);
    for (int i = 0; i < config_.n_layers; ++i) {
      products_.multiply(key_value_, weights_.layers[static_cast<std::size_t>(i)].key_value, normed_, projected_, rows,
                         stream);
      detail::rotate(rotate_job(i, 0), view_of(context), batch, stream);
    }
  }

  void begin_stream(const context_type& context, int n_lanes, int n, cudaStream_t stream) {
    detail::embed<NumberT>({lines_.pending, target_->embedding, vocab_size_, config_.hidden_size, stream_}, n_lanes,
                           stream);
    normalise(weights_.pending_norm, n_lanes, stream);
    products_.multiply(pending_product_, weights_.pending, normed_, root_, products_.planned(n_lanes), stream);
    const detail::block_draft_rows lines = lines_;
    launch(
        "begin_block", detail::begin_block<NumberT>,
        {.grid = dim3(static_cast<unsigned>(n), static_cast<unsigned>(n_lanes)), .threads = detail::block_row_threads},
        stream, root_, context.states.data(), weights_.masked, stream_, config_.hidden_size, max_positions_, lines);
  }

  // [lanes][length] the rows with logits, of blocks of this length.
  const std::int32_t* written_rows(int length) const {
    return written_.data() + static_cast<std::ptrdiff_t>(length - 1) * max_texts_ * config_.block_length;
  }

  void normalise(const float* scale, int n, cudaStream_t stream, const std::int32_t* rows = nullptr) const {
    auto job = detail::normalise_job<NumberT>::of(stream_, config_.hidden_size, config_.norm_epsilon);
    job.norms[0] = {scale, nullptr, normed_};
    job.rows = rows;
    detail::normalise(job, n, stream);
  }

  detail::rotate_job<NumberT> rotate_job(int layer, int n_heads) const {
    detail::rotate_job<NumberT> job;
    job.projected = projected_;
    job.cosine = rotary_.cosine.data();
    job.sine = rotary_.sine.data();
    job.n_heads = n_heads;
    job.n_kv_heads = config_.n_kv_heads;
    job.head_dim = job.rotary_dims = config_.head_dim;
    job.max_positions = slots();
    job.layer = layer;
    return job;
  }

  block_draft_config config_;
  int max_texts_;
  weights_type weights_;
  std::shared_ptr<const model_weights<NumberT>> target_;
  int vocab_size_;
  int max_positions_;
  detail::rotary_table rotary_;
  AttentionT attention_;
  matrix_products products_;
  int features_product_ = 0, key_value_ = 0, pending_product_ = 0, query_key_value_ = 0, attention_out_ = 0,
      gate_up_ = 0, down_ = 0, head_ = 0;
  device_array<std::int32_t> written_;  // [block_length][max_texts * block_length], as written_rows has it

  detail::array_pieces<NumberT> activations_;
  detail::array_pieces<float> floats_;
  detail::array_pieces<LogitT> logits_memory_;
  detail::array_pieces<std::int32_t> integers_;
  NumberT* features_ = nullptr;   // [rows][layers read * hidden_size]; rows: of a block, or read at once
  NumberT* normed_ = nullptr;     // [rows][hidden_size]
  NumberT* projected_ = nullptr;  // [rows][query_size + 2 kv_size], or keys and values alone
  NumberT* attended_ = nullptr;   // [rows][query_size]
  NumberT* wide_ = nullptr;       // [rows][gate, up][intermediate_size]
  NumberT* activated_ = nullptr;  // [rows][intermediate_size]
  float* stream_ = nullptr;       // [rows][hidden_size]
  float* root_ = nullptr;         // [max_texts][hidden_size]
  LogitT* logits_ = nullptr;      // [max_texts][block_length][vocab_size]
  detail::block_draft_rows lines_{};
};

}  // namespace espalier::cuda
