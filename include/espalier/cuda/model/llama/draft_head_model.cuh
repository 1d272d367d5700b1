// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/drafter/feature_steps.cu
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/concepts/state_rows.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/cuda/model/attention/attention_arguments.cuh"
#include "espalier/cuda/model/attention/tree_attention.cuh"
#include "espalier/cuda/model/llama/array_pieces.cuh"
#include "espalier/cuda/model/llama/matrix_products.cuh"
#include "espalier/cuda/model/llama/model_weights.cuh"
#include "espalier/cuda/model/llama/normalise.cuh"
#include "espalier/cuda/model/llama/number.cuh"
#include "espalier/cuda/model/llama/rotate.cuh"
#include "espalier/cuda/model/llama/row_upload.cuh"
#include "espalier/cuda/model/llama/step_launcher.cuh"
#include "espalier/cuda/model/llama/target_states.cuh"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/files/weight_row.hpp"
#include "espalier/model/llama/draft_head_config.hpp"
#include "espalier/model/llama/draft_head_files.hpp"
#include "espalier/model/llama/draft_tokens.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_steps.hpp"

namespace espalier::cuda::detail {

// The states of drafted rows of each text, by the scratch row of the draft's cache. With a max_columns of 0 all texts
// have the same states.
//
// Shapes: states [places][max_columns][width]
template <class NumberT>
struct drafted_states {
  NumberT* states;
  std::int32_t max_columns;
  std::int32_t width;

  ESPALIER_HOST_DEVICE NumberT* of(std::int32_t place, std::int32_t column) const {
    return states + (static_cast<std::int64_t>(place) * max_columns + column) * width;
  }
};

// The arguments of pair_rows, which writes for each row of a pass a token's embedding and the state before the token,
// each normalised, and begins the stream. Row r reads the drafted state number reads[r]; at -1 the target's state at
// the row's position, and at -2 zeros. If `reads` is null, all rows read states of the target.
//
// Shapes: table [vocab][width]; features [places][max_positions][width]; token_norm, state_norm [width]; reads [rows];
// pairs [rows][2][width]; stream [rows][width], or null: another kernel writes it
template <class NumberT>
struct pair_job {
  const NumberT* table;
  std::int32_t vocab;
  std::int32_t width;
  const NumberT* features;
  std::int32_t max_positions;
  drafted_states<NumberT> drafted;
  const std::int32_t* reads;
  const float* token_norm;
  const float* state_norm;
  float epsilon;
  NumberT* pairs;
  float* stream;
  bool norm_before_residual;  // the stream begins with the normalised state
};

// Writes the pairs of a pair_job, and begins its stream; one thread block works on one row. A token outside the
// vocabulary gives NaN; padding becomes zeros.
template <class NumberT>
ESPALIER_KERNEL void pair_rows(pair_job<NumberT> job, forward_batch_view batch) {
  auto& memory = *reinterpret_cast<normalise_memory*>(shared_memory());
  const auto row = static_cast<std::int32_t>(blockIdx.x), thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t width = job.width, sequence = batch.sequence_of[row], position = batch.positions[row];
  const bool is_there = sequence >= 0;
  const std::int32_t place = is_there ? batch.sequences[sequence].sequence : 0;
  const std::int32_t reads = job.reads != nullptr ? job.reads[row] : -1;
  const NumberT* state = nullptr;
  if (is_there && reads >= 0) state = job.drafted.of(place, reads);
  if (is_there && reads == -1 && position < job.max_positions)
    state = job.features + (static_cast<std::int64_t>(place) * job.max_positions + position) * width;
  const token_id token = batch.tokens[row];
  const bool known = token >= 0 && token < job.vocab;
  const NumberT* embedding = job.table + static_cast<std::int64_t>(known ? token : 0) * width;
  const auto state_at = [&](std::int32_t k) { return state != nullptr ? static_cast<float>(state[k]) : 0.0F; };
  float of_token = 0.0F, of_state = 0.0F;
  for (std::int32_t k = thread; k < width; k += normalise_threads) {
    of_token += static_cast<float>(embedding[k]) * static_cast<float>(embedding[k]);
    of_state += state_at(k) * state_at(k);
  }
  const auto factor_of = [&](float squares) {
    return 1.0F / sqrtf(block_sum(memory, squares) / static_cast<float>(width) + job.epsilon);
  };
  const float token_factor = factor_of(of_token), state_factor = factor_of(of_state);
  NumberT* pair = job.pairs + std::int64_t{2} * row * width;
  float* stream = job.stream != nullptr ? job.stream + static_cast<std::int64_t>(row) * width : nullptr;
  for (std::int32_t k = thread; k < width; k += normalise_threads) {
    const float normal = state_at(k) * state_factor * job.state_norm[k];
    const float read = known ? static_cast<float>(embedding[k]) * token_factor * job.token_norm[k] : NAN;
    pair[k] = NumberT(is_there ? read : 0.0F);
    pair[width + k] = NumberT(normal);
    if (stream != nullptr) stream[k] = job.norm_before_residual ? normal : state_at(k);
  }
}

inline constexpr int drafted_threads = 128;

// Keeps the state that each output leaves for later rows, at the number of its row among the scratch rows: row i of
// `normed`, or if that is null the row of `stream`. One thread block works on one output.
//
// Shapes: normed [n_outputs][width]; stream [n_rows][width]
template <class NumberT>
ESPALIER_KERNEL void keep_drafted(drafted_states<NumberT> to, const NumberT* normed, const float* stream,
                                  forward_batch_view batch) {
  const auto i = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t row = batch.outputs != nullptr ? batch.outputs[i] : i;
  if (row < 0 || batch.sequence_of[row] < 0) return;
  const batch_sequence s = batch.sequences[batch.sequence_of[row]];
  NumberT* kept = to.of(s.sequence, batch.slots[row] - s.prefix);
  for (auto k = static_cast<std::int32_t>(threadIdx.x); k < to.width; k += drafted_threads) {
    kept[k] = normed != nullptr ? normed[static_cast<std::int64_t>(i) * to.width + k]
                                : NumberT(stream[static_cast<std::int64_t>(row) * to.width + k]);
  }
}

}  // namespace espalier::cuda::detail

namespace espalier::cuda {

//! The weights of a draft head in the memory of the device, as espalier::draft_head_weights on the host: matrices as
//! NumberT, row by row, norms as float.
//!
//! Complexity  load: as model_weights
//! Errors      those of model_weights; model_error for tensors that contradict the config or one another
template <class NumberT>
struct draft_head_weights : model_weights<NumberT> {
  device_array<NumberT> projection;     //!< [hidden_size][projection_inputs()]
  device_array<float> projection_norm;  //!< [states read * state_size], or empty
  device_array<float> state_norm;       //!< [hidden_size]
  device_array<float> token_norm;       //!< [hidden_size]; empty: the first layer's attention_norm is used
  device_array<token_id> tokens;  //!< [head_size] the token of each column of the logits; empty: columns are tokens
  device_array<NumberT> masked;   //!< [hidden_size] a P-EAGLE head's learned state, projected; empty in other heads

  std::size_t bytes() const {
    return model_weights<NumberT>::bytes() + projection.size() * sizeof(NumberT) +
           (projection_norm.size() + state_norm.size() + token_norm.size()) * sizeof(float);
  }

  static draft_head_weights load(const draft_head_config& config, espalier::tensor_source& file) {
    draft_head_weights weights;
    static_cast<model_weights<NumberT>&>(weights) = model_weights<NumberT>::load(config, file);
    weights.read_projection(config, file);
    const draft_head_norms norms = draft_head_norms::read(config, file);
    const auto upload = []<class ElementT>(const std::vector<ElementT>& from, device_array<ElementT>& to) {
      if (!from.empty()) to = device_array<ElementT>(std::span<const ElementT>(from));
    };
    upload(norms.projection_norm, weights.projection_norm);
    upload(norms.state_norm, weights.state_norm);
    upload(norms.token_norm, weights.token_norm);
    upload(espalier::detail::read_draft_tokens(config, file), weights.tokens);
    if (!config.is_parallel()) return weights;
    const std::vector<float> masked = espalier::detail::read_masked(config, file, norms);
    weights.masked = device_array<NumberT>(masked.size());
    detail::row_upload<NumberT> rows;
    rows.add(weights.masked.data(), masked.data(), masked.size());
    rows.flush();
    return weights;
  }

 private:
  void read_projection(const draft_head_config& c, espalier::tensor_source& file) {
    espalier::detail::read_projection(c, file, true, [](int, const weight_row&) {});
    const auto inputs = static_cast<std::size_t>(c.projection_inputs());
    projection = device_array<NumberT>(static_cast<std::size_t>(c.hidden_size) * inputs);
    detail::row_upload<NumberT> upload;
    std::vector<float> floats(inputs);
    espalier::detail::read_projection(c, file, false, [&](int row, const weight_row& values) {
      values.decode(floats.data());
      upload.add(projection.data() + static_cast<std::size_t>(row) * inputs, floats.data(), inputs);
    });
    upload.flush();
  }
};

//! A draft head on the device, the model of cuda::feature_steps. It loads the EAGLE-3 and MTP heads that
//! espalier::draft_head_model loads on the host, from the same files, and uses the target's embedding and output matrix
//! unless the files have the head's own.
//!
//!     auto target = cuda::llama_backend<__half>::load("models/target", {.hidden_layers = {2, 15, 28}});
//!     cuda::feature_steps drafter(cuda::draft_head_model<__half>::load("models/head", target));
//!
//! NumberT and LogitT mean the same as in llama_backend. Rows of a text have positions, and slots in the cache, that
//! are lower by one than the tokens' own, since the first token has no row: attention depends on distances alone.
//!
//! Complexity  read: 2 launches and, but for an MTP head, a product for each max_rows() rows. forward: a pass of
//!             5 + 9 n_layers launches and products, and those that llama_backend names besides. No allocation, no
//!             synchronisation: a graph can capture both
//! Law         a text's numbers do not depend on the numbers of other texts
//! Errors      load: model_error for files that cannot be read, or that do not fit the target or one another;
//!             cuda_error. load and the constructor: option_error for a target whose option hidden_layers lacks a
//!             layer, and for max_rows out of range
//! Source      as espalier::draft_head_model
template <class NumberT, class LogitT = float, class AttentionT = tree_attention<NumberT>>
class draft_head_model {
 public:
  using number = LogitT;
  using weights_type = draft_head_weights<NumberT>;

  //! The rows of each text in the head's cache, the target's states by position, projected, and the states of drafted
  //! rows.
  struct context_type {
    std::int32_t max_texts = 0;
    std::int32_t max_columns = 0;  //!< scratch rows of a round
    std::int32_t slots = 0;
    device_array<NumberT> keys_values;  //!< [n_layers][places][keys, values][slots][kv_size]
    device_array<NumberT> features;     //!< [places][max_positions][hidden_size]; for an MTP head, not projected
    device_array<NumberT> drafted;      //!< [places][max_columns][hidden_size]

    std::int32_t capacity() const { return slots; }
    void ensure(std::int32_t, std::int32_t, cudaStream_t) const {}
  };

  //! Loads a head whose passes have at most max_rows rows.
  template <class TargetT>
  static draft_head_model load(const std::string& path, const TargetT& target, std::int32_t max_rows = 257) {
    draft_head_config config = draft_head_config::load(path);
    config.require_parallel(false);
    return load(std::move(config), path, target, max_rows);
  }

  //! Loads the head of a config that was read from the same path.
  template <class TargetT>
  static draft_head_model load(draft_head_config config, const std::string& path, const TargetT& target,
                               std::int32_t max_rows = 257) {
    const auto files = draft_head_files::open(std::move(config), path, target.config(), "in use");
    return draft_head_model(files.config, weights_type::load(files.config, *files.tensors), target, max_rows);
  }

  template <class TargetT>
  draft_head_model(const draft_head_config& config, weights_type weights, const TargetT& target,
                   std::int32_t max_rows = 257)
      : config_(config),
        max_rows_(max_rows),
        weights_(std::move(weights)),
        target_(target.weights()),
        max_positions_((std::min)(config.max_positions, target.max_positions())),
        shape_(shape_of(config)),
        steps_(shape_, kept_layers()),
        rotary_(shape_, slots()),
        attention_(shape_of_attention()),
        products_(detail::data_type_of<NumberT>, false) {
    require_option("max_rows of a draft head", max_rows, 8, 1 << 16);
    detail::require_kept_layers("draft head", config.hidden_layers, target.hidden_layers());
    if (!config.has_head) weights_.head = target_->head;
    add_products();
    products_.plan_up_to(max_rows);
    place_buffers();
    activations_.allocate(), floats_.allocate(), logits_memory_.allocate(), integers_.allocate();
    place_buffers();
    activations_.zero(nullptr), floats_.zero(nullptr), integers_.zero(nullptr);
    require(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  int vocab_size() const { return config_.vocab_size; }
  //! Number of columns of the logits.
  int columns() const { return shape_.vocab_size; }
  //! The token of each column of the logits, on the device: [columns]; null: columns are tokens.
  const token_id* tokens() const { return weights_.tokens.data(); }
  int max_positions() const { return max_positions_; }
  int max_rows() const { return max_rows_; }
  const draft_head_config& config() const { return config_; }
  std::size_t weight_bytes() const { return weights_.bytes(); }

  //! Makes a context for max_texts texts, of which nothing has been read yet, and rounds of at most max_columns scratch
  //! rows a text.
  context_type make_context(std::int32_t max_texts, std::int32_t max_columns) const {
    require_option("scratch rows of a draft head", max_columns, 0, 2 * max_rows_);
    const auto texts = static_cast<std::size_t>(max_texts), hidden = static_cast<std::size_t>(config_.hidden_size);
    context_type context{max_texts, max_columns, slots(), {}, {}, {}};
    context.keys_values =
        device_array<NumberT>(static_cast<std::size_t>(config_.n_layers) * texts * 2 *
                              static_cast<std::size_t>(slots()) * static_cast<std::size_t>(config_.kv_size()));
    context.features = device_array<NumberT>(texts * static_cast<std::size_t>(max_positions_) * hidden);
    context.drafted = device_array<NumberT>(texts * static_cast<std::size_t>(max_columns) * hidden);
    return context;
  }

  //! Adds the target's states of these rows of its last pass to the context. Rows beyond max_positions() are left out.
  template <class BackendT>
  void read(context_type& context, const BackendT& backend, const state_rows& rows, cudaStream_t stream) {
    const std::int32_t at_once = (std::max)(1, max_rows_ / rows.n_lanes());
    for (std::int32_t done = 0; done < rows.max; done += at_once)
      read_part(context, backend, rows.part(done, (std::min)(rows.max - done, at_once)), stream);
  }

  //! Computes a pass, and returns the logits of its outputs. If `reads` is given, it says which state each row reads,
  //! as draft_batch::reads() does, and the outputs' own states are kept for later rows. Else all rows read states of
  //! the target. A P-EAGLE head keeps no states, and state 0 is its learned state.
  //!
  //! Shapes      [n_outputs][columns], at the same address always
  //! Pre         batch.n_rows <= max_rows(); the target's states before the rows of texts were read
  vocab_rows<LogitT> forward(context_type& context, const forward_batch_view& batch, cudaStream_t stream,
                             const std::int32_t* reads = nullptr) {
    place here{{products_, memory_}, *this, context, reads};
    detail::step_launcher<NumberT, LogitT, AttentionT, weights_type, place>{
        steps_, shape_, products_, numbers_, rotary_, &attention_, weights_, memory_, 0, here}
        .run(steps_.all(), view_of(context), batch, stream);
    if (reads != nullptr && batch.n_outputs > 0 && !config_.is_parallel()) {
      launch("keep_drafted", detail::keep_drafted<NumberT>,
             {.grid = static_cast<unsigned>(batch.n_outputs), .threads = detail::drafted_threads}, stream,
             drafted_of(context), config_.norm_output ? memory_.normed : nullptr, kept_, batch);
    }
    return {memory_.logits, batch.n_outputs, shape_.vocab_size};
  }

 private:
  // Returns the shape of the head's transformer; its vocabulary is the columns of the logits.
  static model_config shape_of(const draft_head_config& config) {
    model_config shape = config;
    if (config.head_size > 0) shape.vocab_size = config.head_size;
    return shape;
  }

  // The last layer, if the states after it are kept before the final norm.
  std::vector<int> kept_layers() const {
    return config_.norm_output ? std::vector<int>() : std::vector<int>{config_.n_layers - 1};
  }

  // The PlaceT of step_launcher for a head, whose stream begin_rows() fills.
  struct place : detail::whole_place<NumberT, LogitT> {
    const draft_head_model& of;
    const context_type& context;
    const std::int32_t* reads;

    void embed(const forward_batch_view& batch, cudaStream_t stream) const {
      of.begin_rows(context, reads, batch, stream);
    }
    float* kept(int) const { return of.kept_; }
  };

  // Slots of a text: a round may have as many scratch rows as its passes for the root and for the nodes have rows.
  int slots() const { return max_positions_ + 2 * max_rows_; }

  attention_shape shape_of_attention() const {
    attention_shape shape;
    shape.n_heads = config_.n_heads;
    shape.n_kv_heads = config_.n_kv_heads;
    shape.head_dim = config_.head_dim;
    shape.max_rows = max_rows_;
    shape.max_context = slots();
    shape.query_stride = config_.projected_size();
    return shape;
  }

  void add_products() {
    const int width = config_.hidden_size;
    constexpr cudaDataType_t numbers = detail::data_type_of<NumberT>;
    // An EAGLE-3 head's projection gives states, an MTP head's the stream.
    projection_ = products_.add(width, config_.projection_inputs(), config_.is_mtp() ? CUDA_R_32F : numbers, false);
    numbers_.add_layers(products_, config_, numbers);
    if (config_.paired_input)
      numbers_.paired_query_key_value = products_.add(config_.projected_size(), 2 * width, numbers, false);
    numbers_.head = products_.add(shape_.vocab_size, width, detail::data_type_of<LogitT>, false);
  }

  void place_buffers() {
    const auto rows = [&](int width) { return static_cast<std::size_t>(max_rows_) * static_cast<std::size_t>(width); };
    if (!config_.is_mtp()) gathered_ = activations_.take(rows(config_.projection_inputs()));
    memory_.paired = activations_.take(rows(2 * config_.hidden_size));
    memory_.take_layers(config_, max_rows_, activations_, floats_, integers_);
    if (!config_.norm_output) kept_ = floats_.take(rows(config_.hidden_size));
    memory_.logits = logits_memory_.take(rows(shape_.vocab_size));
    static_assert(sizeof(batch_sequence) % sizeof(std::int32_t) == 0);
    places_.positions = integers_.take(rows(1));
    places_.sequence_of = integers_.take(rows(1));
    places_.sequences =
        reinterpret_cast<batch_sequence*>(integers_.take(rows(sizeof(batch_sequence) / sizeof(std::int32_t))));
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

  detail::drafted_states<NumberT> drafted_of(const context_type& context) const {
    if (config_.is_parallel()) return {weights_.masked.data(), 0, config_.hidden_size};
    return {context.drafted.data(), context.max_columns, config_.hidden_size};
  }

  // A head in the target's own files reads the target's last state after its final norm.
  template <class BackendT>
  void read_part(context_type& context, const BackendT& backend, const state_rows& part, cudaStream_t stream) {
    const int n_rows = part.n_lanes() * part.max;
    auto job = detail::gather_job<NumberT>::of(backend, config_.hidden_layers, config_.state_size(), max_positions_,
                                               config_.is_mtp() ? memory_.normed : gathered_);
    const bool is_beside = config_.layout == model_config::layout_type::mtp_beside;
    job.scale = is_beside ? target_->final_norm.scale : weights_.projection_norm.data();
    job.together = config_.norm_together;
    job.epsilon = config_.norm_epsilon;
    detail::gather_states(job, part, places_, stream);
    if (!config_.is_mtp()) {
      products_.multiply(projection_, weights_.projection.data(), gathered_, memory_.normed, products_.planned(n_rows),
                         stream);
    }
    detail::keep_states(memory_.normed, context.features.data(), config_.hidden_size, max_positions_, places_, n_rows,
                        stream);
  }

  // Writes what the first layer reads: the pairs of an EAGLE-3 head and its stream, or the stream alone of an MTP head,
  // which is the projection of the pairs.
  void begin_rows(const context_type& context, const std::int32_t* reads, const forward_batch_view& batch,
                  cudaStream_t stream) const {
    const bool is_mtp = config_.is_mtp();
    detail::pair_job<NumberT> job;
    job.table = weights_.embedding != nullptr ? weights_.embedding : target_->embedding;
    job.vocab = config_.vocab_size;
    job.width = config_.hidden_size;
    job.features = context.features.data();
    job.max_positions = max_positions_;
    job.drafted = drafted_of(context);
    job.reads = reads;
    job.token_norm = is_mtp ? weights_.token_norm.data() : weights_.layers.front().attention_norm.scale;
    job.state_norm = weights_.state_norm.data();
    job.epsilon = config_.norm_epsilon;
    job.pairs = memory_.paired;
    job.stream = is_mtp ? nullptr : memory_.stream;
    job.norm_before_residual = config_.norm_before_residual;
    launch("pair_rows", detail::pair_rows<NumberT>,
           {.grid = static_cast<unsigned>(batch.n_rows),
            .threads = detail::normalise_threads,
            .shared_bytes = sizeof(detail::normalise_memory)},
           stream, job, batch);
    if (!is_mtp) return;
    products_.multiply(projection_, weights_.projection.data(), memory_.paired, memory_.stream,
                       products_.planned(batch.n_rows), stream);
  }

  draft_head_config config_;
  int max_rows_;
  weights_type weights_;
  std::shared_ptr<const model_weights<NumberT>> target_;
  int max_positions_;
  model_config shape_;
  detail::model_steps steps_;
  detail::rotary_tables rotary_;
  AttentionT attention_;
  matrix_products products_;
  int projection_ = 0;
  detail::step_products numbers_;

  detail::array_pieces<NumberT> activations_;
  detail::array_pieces<float> floats_;
  detail::array_pieces<LogitT> logits_memory_;
  detail::array_pieces<std::int32_t> integers_;
  NumberT* gathered_ = nullptr;  // [max_rows][projection_inputs()]; null for an MTP head
  float* kept_ = nullptr;        // [max_rows][hidden_size] the stream after the last layer; null with norm_output
  detail::model_memory<NumberT, LogitT> memory_;
  detail::state_places places_{};
};

}  // namespace espalier::cuda
