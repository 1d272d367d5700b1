// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/drafter/block_diffusion.cu
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
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
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/cuda/model/attention/attention_arguments.cuh"
#include "espalier/cuda/model/attention/tree_attention.cuh"
#include "espalier/cuda/model/llama/array_pieces.cuh"
#include "espalier/cuda/model/llama/block_refiner.cuh"
#include "espalier/cuda/model/llama/candidate_selector.cuh"
#include "espalier/cuda/model/llama/correction_memory.cuh"
#include "espalier/cuda/model/llama/embed.cuh"
#include "espalier/cuda/model/llama/markov_head.cuh"
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
#include "espalier/model/llama/block_draft_config.hpp"
#include "espalier/model/llama/block_draft_files.hpp"
#include "espalier/model/llama/block_draft_tensors.hpp"
#include "espalier/model/llama/block_sight.hpp"
#include "espalier/model/llama/draft_tokens.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_steps.hpp"

namespace espalier::cuda::detail {

// Refuses a block draft that has parts which no kernel computes.
//
// Errors: model_error
inline void require_on_device(const block_draft_config& c) {
  const auto require = [&](const char* key, int value, int most) {
    if (value <= most) return;
    raise<model_error>(c.where, ": \"", key, "\" is ", value, ", but the device computes at most ", most,
                       "; the host's espalier::block_draft_model computes any.");
  };
  require("markov_rank", c.markov_rank, most_markov_rank);
  require("selector_top_k", c.selector_candidates, candidate_selector<float, float>::max_candidates);
}

// The positions that rows of a block see in layers of one kind: the mask of each row, and its window.
//
// Shapes: mask [rows][words] of the rows of a block; windows [rows], or nullptr: rows see all of the text before the
// block
struct block_seen {
  std::uint32_t* mask;
  std::int32_t* windows;
};

// The rows of one pass of a block draft: arrays of a forward_batch_view, which kernels write, with one sequence for
// each lane. All sequences have the same number of rows. The number of a sequence is the place of its text in the
// context.
//
// Shapes: tokens [rows], or in the library's own layout [lanes]: the pending tokens
struct block_draft_rows : state_places {
  token_id* tokens;
  block_seen seen, windowed;  // in layers without a window, and in layers with one if there are any

  forward_batch_view view(std::int32_t n_lanes, std::int32_t n, std::int32_t max_context) const {
    forward_batch_view batch = state_places::view(n_lanes, n, max_context);
    batch.mask = seen.mask;
    return batch;
  }
};

inline constexpr int block_row_threads = 128;

// The shape of the blocks that open_block() writes.
struct opened_blocks {
  std::int32_t n;  // rows of a block
  std::int32_t max_positions;
  token_id mask_token;  // -1: the library's own layout
  espalier::detail::block_sight sight, windowed;
};

// Writes what the rows of a lane's block at this position see, of which the first is row `first` of the pass. Called by
// a thread block. Bit j of a row's mask is row j of the block; what a row does not see of the text before the block,
// its window leaves out.
__device__ inline void write_seen(const block_seen& to, const espalier::detail::block_sight& sight, std::int32_t first,
                                  std::int32_t n, std::int32_t position) {
  const std::int32_t words = (n + 31) / 32;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < n * words; i += block_row_threads) {
    const auto seen = sight.of(position, n, i / words);
    std::uint32_t bits = 0;
    for (std::int32_t bit = 0; bit < 32; ++bit) {
      const std::int32_t other = position + i % words * 32 + bit;
      if (other >= seen.begin && other < seen.end) bits |= 1U << bit;
    }
    to.mask[first * words + i] = bits;
  }
  if (to.windows == nullptr) return;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < n; i += block_row_threads) {
    const auto seen = sight.of(position, n, i);
    to.windows[first + i] = seen.end - seen.begin;
  }
}

// Writes the rows of a drafted block, the pending token's row first. If the pending token lies beyond the last
// position, the rows are padding. One thread block works on one lane.
template <class UnusedT = void>
ESPALIER_KERNEL void open_block(block_draft_rows to, text_batch texts, opened_blocks shape) {
  const text_in_batch here = texts.here();
  const std::int32_t position = here.place < 0 ? -1 : here.text.state->size - 1;
  const bool is_there = position >= 0 && position < shape.max_positions;
  const std::int32_t n = shape.n, words = (n + 31) / 32, first = here.lane * n;
  write_seen(to.seen, shape.sight, first, n, is_there ? position : 0);
  if (to.windowed.mask != nullptr) write_seen(to.windowed, shape.windowed, first, n, is_there ? position : 0);
  const token_id pending = is_there ? here.text.tokens[position] : 0;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < n; i += block_row_threads) {
    to.positions[first + i] = is_there ? position + i : -1;
    to.sequence_of[first + i] = is_there ? here.lane : -1;
    if (shape.mask_token >= 0) to.tokens[first + i] = i == 0 ? pending : shape.mask_token;
  }
  if (threadIdx.x != 0) return;
  to.sequences[here.lane] = {is_there ? here.place : 0, first,         first + n,
                             is_there ? position : 0,   first * words, words};
  if (shape.mask_token < 0) to.tokens[here.lane] = pending;
}

// Block (row, lane) writes a row of the stream, which is a sum of up to three parts: `root` (the product of the pending
// token's normed embedding with the matrix `pending`), the last state of the context, if the context is not empty, and,
// in each row but the pending token's, that row's own row of `masked`.
//
// Shapes: root [lanes][width]; states [places][max_positions][width]; masked [rows - 1][width]; stream
// [lanes][rows][width]
template <class NumberT>
ESPALIER_KERNEL void begin_block(const float* root, const NumberT* states, const NumberT* masked, float* stream,
                                 std::int32_t width, std::int32_t max_positions, block_draft_rows rows) {
  const auto row = static_cast<std::int32_t>(blockIdx.x), lane = static_cast<std::int32_t>(blockIdx.y);
  const std::int32_t first = lane * static_cast<std::int32_t>(gridDim.x);
  const std::int32_t position = rows.positions[first];
  const std::int64_t before = static_cast<std::int64_t>(rows.sequences[lane].sequence) * max_positions + position - 1;
  const NumberT* state = position > 0 ? states + before * width : nullptr;
  const NumberT* own = row > 0 ? masked + static_cast<std::int64_t>(row - 1) * width : nullptr;
  for (auto k = static_cast<std::int32_t>(threadIdx.x); k < width; k += block_row_threads) {
    float value = root[static_cast<std::int64_t>(lane) * width + k];
    if (state != nullptr) value += static_cast<float>(state[k]);
    if (own != nullptr) value += static_cast<float>(own[k]);
    stream[static_cast<std::int64_t>(first + row) * width + k] = value;
  }
}

}  // namespace espalier::cuda::detail

namespace espalier::cuda {

//! The weights of a block draft in the memory of the device, matrices as NumberT, row by row, norms as float.
//! Query, key and value projections are one matrix, rows in that order; so are gate and up.
//!
//! Complexity  load: reads the file once; host memory for 2^21 numbers. Synchronises
//! Errors      model_error for a tensor that is missing or unknown, or has another shape or dtype than the config asks
//!             for, for a weight beyond the range of NumberT, and for a block with a markov_rank above 4096 or a
//!             selector_top_k above 1024, which the device does not compute; cuda_error
template <class NumberT>
struct block_draft_weights {
  static_assert(detail::is_model_number<NumberT>,
                "a transformer on the device computes with float, __half or __nv_bfloat16");

  using norm_type = typename model_weights<NumberT>::norm_type;
  using linear_type = typename model_weights<NumberT>::linear_type;
  //! A layer of a transformer; query and key_value are the first and the last rows of query_key_value.
  struct layer_type : model_weights<NumberT>::layer_type {
    linear_type query, key_value;
    linear_type attention_factors, mlp_factors;  //!< [conv_factors][hidden_size], if there are convolutions
    float* attention_taps = nullptr;             //!< [2][conv_taps][hidden_size]: before and after attention
    float* mlp_taps = nullptr;
  };

  detail::array_pieces<NumberT> matrices;
  detail::array_pieces<float> vectors;
  linear_type features;       //!< [hidden_size][layers read * hidden_size]
  linear_type pending;        //!< [hidden_size][hidden_size]; DFlash has neither this, nor pending_norm, nor masked
  NumberT* masked = nullptr;  //!< [block_length][hidden_size], added to the rows of tokens that are to be drafted
  norm_type features_norm, pending_norm, final_norm;
  std::vector<layer_type> layers;
  NumberT* embedding = nullptr;   //!< [vocab_size][hidden_size]; null: the target's is used
  linear_type head;               //!< [columns][hidden_size]; the model sets it to the target's if the file has none
  device_array<token_id> tokens;  //!< [columns] the token of each column of the logits; empty: columns are tokens
  detail::markov_weights<NumberT> markov;
  detail::candidate_weights<NumberT> selector;
  detail::refiner_weights<NumberT> refiner;

  std::size_t bytes() const { return matrices.bytes() + vectors.bytes(); }

  static block_draft_weights load(const block_draft_config& config, espalier::tensor_source& file) {
    detail::require_on_device(config);
    block_draft_weights weights;
    weights.layers.resize(static_cast<std::size_t>(config.n_layers));
    weights.place(config);
    const detail::whole_rows all{config};
    loader to{{weights, all}, config};
    espalier::detail::block_draft_tensors(config, file, to, true).read();
    weights.matrices.allocate();
    weights.vectors.allocate();
    weights.place(config);
    espalier::detail::block_draft_tensors(config, file, to, false).read();
    to.upload.flush();
    if (!config.is_dflash()) return weights;
    const std::vector<token_id> tokens = espalier::detail::read_draft_tokens(config, file);
    if (!tokens.empty()) weights.tokens = device_array<token_id>(std::span<const token_id>(tokens));
    return weights;
  }

 private:
  // Gives each array its memory; while there is none yet, counts how much all arrays need.
  void place(const block_draft_config& c) {
    const auto size = [](int n) { return static_cast<std::size_t>(n); };
    const auto matrix = [&](int outputs, int inputs) { return matrices.take(size(outputs) * size(inputs)); };
    const auto linear = [&](int outputs, int inputs) { return linear_type{matrix(outputs, inputs), nullptr, inputs}; };
    const auto norm = [&] { return norm_type{vectors.take(size(c.hidden_size))}; };
    const auto norm_of_heads = [&] { return c.query_key_norm ? vectors.take(size(c.head_dim)) : nullptr; };
    features = linear(c.hidden_size, static_cast<int>(c.hidden_layers.size()) * c.hidden_size);
    features_norm = norm(), final_norm = norm();
    if (!c.is_dflash()) {
      pending = linear(c.hidden_size, c.hidden_size);
      masked = matrix(c.block_length, c.hidden_size);
      pending_norm = norm();
    }
    if (c.has_embedding) embedding = matrix(c.vocab_size, c.hidden_size);
    if (c.has_head) head = linear(c.columns(), c.hidden_size);
    if (c.markov_rank > 0) {
      markov.tokens = matrix(c.vocab_size, c.markov_rank);
      markov.out = matrix(c.columns(), c.markov_rank);
    }
    if (c.selector_rank > 0) {
      selector.before = matrix(c.vocab_size, c.selector_rank);
      selector.after = matrix(c.vocab_size, c.selector_rank);
      selector.of_state = matrix(c.selector_rank, c.hidden_size);
    }
    if (const int rank = c.refiner_rank, inner = c.refiner_inner; rank > 0) {
      const int rows = c.rows_of(c.block_length);
      refiner.tokens = matrix(c.vocab_size, rank);
      refiner.mixer = vectors.take(size(rows * rows) * size(rank));
      refiner.of_state = matrix(rank, c.hidden_size), refiner.of_mean = matrix(rank, c.hidden_size);
      refiner.in_state = matrix(rank, rank), refiner.in_mean = matrix(rank, rank),
      refiner.in_token = matrix(rank, rank);
      refiner.widen = matrix(2 * inner, rank);
      refiner.down = matrix(rank, inner);
      refiner.out = matrix(c.columns(), rank);
    }
    if (c.markov_gates() > 0) {
      markov.gate_of_path = matrix(c.markov_gates(), c.path_inputs());
      markov.gate_of_state = matrix(c.markov_gates(), c.hidden_size);
      markov.gate_bias = vectors.take(size(c.markov_gates()));
    }
    for (layer_type& layer : layers) {
      layer.attention_norm = norm(), layer.mlp_norm = norm();
      layer.query_norm = norm_of_heads(), layer.key_norm = norm_of_heads();
      if (c.conv_taps > 0) {
        layer.attention_factors = linear(c.conv_factors(), c.hidden_size);
        layer.mlp_factors = linear(c.conv_factors(), c.hidden_size);
        layer.attention_taps = vectors.take(size(2 * c.conv_taps) * size(c.hidden_size));
        layer.mlp_taps = vectors.take(size(2 * c.conv_taps) * size(c.hidden_size));
      }
      layer.query_key_value = layer.query = layer.key_value = linear(c.projected_size(), c.hidden_size);
      if (layer.key_value.matrix != nullptr) layer.key_value.matrix += size(c.query_size()) * size(c.hidden_size);
      layer.attention_out = linear(c.hidden_size, c.query_size());
      layer.gate = layer.up = linear(2 * c.intermediate_size, c.hidden_size);
      if (layer.up.matrix != nullptr) layer.up.matrix += size(c.intermediate_size) * size(c.hidden_size);
      layer.down = linear(c.hidden_size, c.intermediate_size);
    }
  }

  struct loader : detail::weight_upload<NumberT, block_draft_weights, detail::whole_rows> {
    using base = detail::weight_upload<NumberT, block_draft_weights, detail::whole_rows>;

    const block_draft_config& draft;

    void set_row(espalier::detail::part_place place, int row, const weight_row& values) {
      using enum espalier::detail::model_part;
      const auto& to = this->weights;
      if (place.part == masked) return this->add_row(to.masked, row, values, 0, values.n);
      if (place.part == embedding) return this->add_row(to.embedding, row, values, 0, values.n);
      if (place.part == markov_tokens) return this->add_row(to.markov.tokens, row, values, 0, values.n);
      if (place.part == markov_out) return this->add_row(to.markov.out, row, values, 0, values.n);
      if (place.part == selector_before) return this->add_row(to.selector.before, row, values, 0, values.n);
      if (place.part == selector_after) return this->add_row(to.selector.after, row, values, 0, values.n);
      if (place.part == selector_state) return this->add_row(to.selector.of_state, row, values, 0, values.n);
      if (place.part == markov_gate) {
        const auto [path, state] = draft.gate_columns();
        const int n = draft.path_inputs();
        this->add_row(to.markov.gate_of_path, row, values, path, n);
        return this->add_row(to.markov.gate_of_state, row, values, state, draft.hidden_size);
      }
      if (place.part >= refiner_tokens && place.part <= refiner_out) return set_refiner_row(place.part, row, values);
      if (place.part != unused) base::set_row(place, row, values);
    }
    void set_vector(espalier::detail::part_place place, const float* values, int n) {
      using enum espalier::detail::model_part;
      if (place.part == markov_gate_bias) return detail::upload_vector(this->weights.markov.gate_bias, values, n);
      if (place.part == refiner_mixer) {
        std::vector<float> turned(static_cast<std::size_t>(n));
        espalier::detail::turn_mixer(values, draft.refiner_rank, draft.rows_of(draft.block_length), turned.data());
        return detail::upload_vector(this->weights.refiner.mixer, turned.data(), n);
      }
      if (place.part != unused) base::set_vector(place, values, n);
    }
    void set_refiner_row(espalier::detail::model_part which, int row, const weight_row& values) {
      using enum espalier::detail::model_part;
      const auto& to = this->weights.refiner;
      const int rank = draft.refiner_rank;
      if (which == refiner_in) {
        this->add_row(to.in_state, row, values, 0, rank);
        this->add_row(to.in_mean, row, values, rank, rank);
        return this->add_row(to.in_token, row, values, 2 * rank, rank);
      }
      NumberT* const matrix = which == refiner_tokens  ? to.tokens
                              : which == refiner_state ? to.of_state
                              : which == refiner_mean  ? to.of_mean
                              : which == refiner_down  ? to.down
                              : which == refiner_out   ? to.out
                                                       : to.widen;
      this->add_row(matrix, which == refiner_up ? draft.refiner_inner + row : row, values, 0, values.n);
    }
  };
};

//! A block-diffusion draft on the device. It loads the files that espalier::block_draft_model loads on the host. It
//! uses the target's embedding and output matrix, unless the file has its own. The output matrix may have rows for some
//! tokens alone. With a Markov head (DSpark), a selector (DFlash2) or a refiner (XPress), corrected() gives rows that
//! also depend on the drafted tokens before them.
//!
//!     auto target = cuda::llama_backend<__half>::load("models/target", {.hidden_layers = {1, 3, 5}});
//!     cuda::block_diffusion drafter(cuda::block_draft_model<__half>::load("models/block", target));
//!
//! NumberT and LogitT mean the same as in llama_backend.
//!
//! Shapes      config.json and model.safetensors in the folder, in a layout of block_draft_config, or a GGUF file
//! Complexity  forward: one pass of at most length + 1 rows for each lane, of 9 n_layers + 7 launches and products, and
//!             one more a layer if attention divides the context. Layers with a window take the plain kernel of
//!             attention, which reads no key before a row's window. read: a pass of 2 n_layers + 4 launches and
//!             products for each chunk of the rows; a chunk has up to max(64, max_texts * (block_length + 1)) rows, the
//!             same number of each lane. No allocation, no synchronisation: a graph can capture both
//! Law         a text's numbers do not depend on the numbers of other texts
//! Errors      load and the constructor: model_error for a block that does not fit the target, or that the device does
//!             not compute; option_error for a target whose option hidden_layers lacks a layer, or for max_texts out of
//!             range. load: model_error for files that do not fit one another; cuda_error
//! Source      as espalier::block_draft_model
template <class NumberT, class LogitT = float, class AttentionT = tree_attention<NumberT>>
class block_draft_model {
 public:
  using number = LogitT;
  using weights_type = block_draft_weights<NumberT>;

  //! The part of each text that was read: keys and values of each layer, and the states from which they were computed,
  //! by position.
  struct context_type {
    std::int32_t max_texts = 0;
    device_array<NumberT> keys_values;  //!< [n_layers][places][keys, values][slots][kv_size]
    device_array<NumberT> states;       //!< [places][max_positions][hidden_size]; empty for DFlash
    detail::correction_memory<NumberT, LogitT> corrected;
  };

  //! Loads a model for rounds of at most max_texts texts.
  template <class TargetT>
  static block_draft_model load(const std::string& path, const TargetT& target, std::int32_t max_texts = 1) {
    const block_draft_files files = block_draft_files::open(path, target);
    return block_draft_model(files.config, weights_type::load(files.config, *files.tensors), target, max_texts);
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
        shape_(shape_of(config, vocab_size_)),
        steps_(shape_),
        read_shape_(shape_),
        read_steps_(steps_of_reading(shape_)),
        rotary_(shape_, slots()),
        attention_(shape_of_attention()),
        products_(detail::data_type_of<NumberT>, false),
        markov_(config, shape_.vocab_size, weights_.markov, max_texts),
        selector_(config, weights_.selector, max_texts) {
    require_option("max_texts", max_texts, 1, 4096);
    detail::require_on_device(config);
    espalier::detail::check_block_draft_target(config, target);
    detail::require_kept_layers("block draft", config.hidden_layers, target.hidden_layers());
    if (!config.has_head) weights_.head = target_->head;
    if (config.refiner_rank > 0) refiner_.emplace(config, shape_.vocab_size, weights_.refiner, max_texts);
    read_shape_.n_heads = 0;
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
      const std::int32_t rows = config.rows_of(length);
      for (std::int32_t lane = 0; lane < max_texts; ++lane, row += length)
        std::iota(row, row + length, lane * rows + rows - length);
      next += static_cast<std::ptrdiff_t>(all);
    }
    written_ = device_array<std::int32_t>(std::span<const std::int32_t>(written));
    require(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  int vocab_size() const { return vocab_size_; }
  //! Number of columns of the logits.
  int columns() const { return shape_.vocab_size; }
  //! The token of each column of the logits, on the device: [columns]; null: columns are tokens.
  const token_id* tokens() const { return weights_.tokens.data(); }
  int block_length() const { return config_.block_length; }
  int max_positions() const { return max_positions_; }
  int max_texts() const { return max_texts_; }
  const block_draft_config& config() const { return config_; }
  std::size_t weight_bytes() const { return weights_.bytes(); }

  //! Makes a context for max_texts texts, of which nothing has been read yet.
  //!
  //! Errors      option_error for more texts than the model was made for
  context_type make_context(std::int32_t max_texts) const {
    require_option("texts of a block draft", max_texts, 1, max_texts_);
    const auto texts = static_cast<std::size_t>(max_texts), kv = static_cast<std::size_t>(config_.kv_size());
    const auto layers = static_cast<std::size_t>(config_.n_layers);
    context_type context;
    context.max_texts = max_texts;
    context.keys_values = device_array<NumberT>(layers * texts * 2 * static_cast<std::size_t>(slots()) * kv);
    if (!config_.is_dflash()) {
      context.states = device_array<NumberT>(texts * static_cast<std::size_t>(max_positions_) *
                                             static_cast<std::size_t>(config_.hidden_size));
    }
    return context;
  }

  //! Adds these rows of the target's last pass to the context, by their hidden states. Rows beyond max_positions() are
  //! left out.
  template <class BackendT>
  void read(context_type& context, const BackendT& backend, const state_rows& rows, cudaStream_t stream) {
    const std::int32_t at_once = (std::max)(1, most_rows() / rows.n_lanes());
    for (std::int32_t done = 0; done < rows.max; done += at_once)
      read_part(context, backend, rows.part(done, (std::min)(rows.max - done, at_once)), stream);
  }

  //! Returns the logits of the next `length` tokens of each text. Beyond max_positions() they mean nothing.
  //!
  //! Shapes      [lanes][length][columns], at the same address always
  //! Pre         the states of all tokens but the last were read; 1 <= length <= block_length()
  vocab_rows<LogitT> forward(context_type& context, const text_batch& texts, std::int32_t length, cudaStream_t stream) {
    const int n = config_.rows_of(length);
    const detail::block_draft_rows lines = lines_;
    const detail::opened_blocks blocks{n, max_positions_, config_.mask_token, config_.sight(false),
                                       config_.sight(true)};
    launch("open_block", detail::open_block<>, {.grid = texts.lanes(), .threads = detail::block_row_threads}, stream,
           lines, texts, blocks);
    forward_batch_view batch = lines.view(texts.n, n, (std::max)(1, (std::min)(texts.max_context, max_positions_)));
    // The row of the pending token has no logits, unless it drafts the first token.
    batch.outputs = written_rows(length);
    batch.n_outputs = texts.n * length;
    walk(steps_.all(), shape_, context, batch, stream);
    detail::scale_logits(memory_.logits, std::int64_t{batch.n_outputs} * shape_.vocab_size, config_.output_scale,
                         config_.output_cap, stream);
    markov_.read_states(memory_.normed, texts.n, length, stream);
    selector_.read_block(memory_.normed, memory_.logits, texts, length, stream);
    if (refiner_) {
      refiner_->read_stream(memory_.stream, weights_.final_norm.scale, config_.norm_epsilon, texts.n, n, stream);
    }
    return {memory_.logits, batch.n_outputs, shape_.vocab_size};
  }

  //! Whether rows are corrected by path: the draft has a Markov head, a selector or a refiner.
  bool corrects() const { return config_.corrects(); }

  //! Takes memory for calls of corrected() about at most max_nodes nodes of each of n_texts trees. Pre: corrects()
  void reserve_corrections(context_type& context, std::int32_t max_nodes, std::int32_t n_texts) {
    if (selector_.is_there()) return selector_.reserve(context.corrected, max_nodes, n_texts);
    if (refiner_) return refiner_->reserve(context.corrected, max_nodes, n_texts);
    markov_.reserve(context.corrected, max_nodes, n_texts);
  }

  //! Returns the logits of the tokens after these nodes of the trees: the rows of the last forward() at their depths,
  //! corrected. Nodes below the last row have the last one.
  //!
  //! Shapes      [lanes][nodes.n][columns], at the same address always
  //! Pre         corrects(); the texts are those of the last forward()
  vocab_rows<LogitT> corrected(const context_type& context, const text_batch& texts, node_list nodes,
                               cudaStream_t stream) const {
    if (selector_.is_there()) return selector_.after(context.corrected, texts, nodes, stream);
    if (refiner_) return refiner_->after(context.corrected, texts, nodes, memory_.logits, stream);
    return markov_.after(context.corrected, texts, nodes, memory_.logits, stream);
  }

 private:
  static constexpr int read_rows = 64;  // number of rows for which every model has room in a pass of read()

  // Returns the shape of the transformer of a draft for a target with so many tokens; its vocabulary is the columns of
  // the logits.
  static model_config shape_of(const block_draft_config& config, int vocab_size) {
    model_config shape = config.without_windows();
    shape.vocab_size = config.head_size > 0 ? config.head_size : vocab_size;
    return shape;
  }

  // Returns the steps that write keys and values of states to the cache, layer after layer.
  static std::vector<detail::model_step> steps_of_reading(const model_config& config) {
    std::vector<detail::model_step> reading;
    const detail::model_steps of_two_matrices(config, {}, true);
    for (const detail::model_step& step : of_two_matrices.all()) {
      if (step.part == detail::model_part::key_value || step.kind == detail::step_kind::rotate) reading.push_back(step);
    }
    return reading;
  }

  // The PlaceT of step_launcher for a draft: it has the whole of each matrix, and begin_stream() fills its stream.
  struct place : detail::whole_place<NumberT, LogitT> {
    const block_draft_model& of;
    const context_type& context;
    int n_lanes, n;  // n: rows of a lane

    void embed(const forward_batch_view&, cudaStream_t stream) const { of.begin_stream(context, n_lanes, n, stream); }
    void see(int layer, forward_batch_view& batch, attention_scores& scores) const {
      if (!of.config_.is_windowed(layer)) return;
      batch.mask = of.lines_.windowed.mask;
      scores.windows = of.lines_.windowed.windows;
    }
    float* kept(int) const { return nullptr; }
  };

  // Launches these steps. `shape` is shape_, or read_shape_ for the steps of a read.
  void walk(std::span<const detail::model_step> steps, const model_config& shape, const context_type& context,
            const forward_batch_view& batch, cudaStream_t stream) const {
    place here{{products_, memory_}, *this, context, batch.n_sequences, batch.n_rows / batch.n_sequences};
    detail::step_launcher<NumberT, LogitT, AttentionT, weights_type, place>{
        steps_, shape, products_, numbers_, rotary_, &attention_, weights_, memory_, 0, here}
        .run(steps, view_of(context), batch, stream);
  }

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
    // The rows of keys and values begin where the rows of queries end.
    const auto begin = static_cast<std::size_t>(q) * static_cast<std::size_t>(width) * sizeof(NumberT);
    const auto alignment = static_cast<std::uint32_t>((std::min)(std::size_t{256}, begin & (~begin + 1)));
    features_product_ = products_.add(width, features_size(), CUDA_R_32F, false);
    if (!config_.is_dflash()) pending_product_ = products_.add(width, width, CUDA_R_32F, false);
    numbers_.key_value = products_.add(2 * kv, width, numbers, false, alignment);
    numbers_.query_key_value = products_.add(q + 2 * kv, width, numbers, false);
    const bool adds = config_.adds_products();
    if (config_.conv_taps > 0) numbers_.conv_factors = products_.add(config_.conv_factors(), width, CUDA_R_32F, false);
    numbers_.attention_out = products_.add(width, q, CUDA_R_32F, adds);
    numbers_.widen = products_.add(2 * config_.intermediate_size, width, numbers, false);
    numbers_.down = products_.add(width, config_.intermediate_size, CUDA_R_32F, adds);
    numbers_.head = products_.add(shape_.vocab_size, width, detail::data_type_of<LogitT>, false);
  }

  int features_size() const { return static_cast<int>(config_.hidden_layers.size()) * config_.hidden_size; }

  void place_buffers() {
    const auto rows = [&](int width) {
      return static_cast<std::size_t>(most_rows()) * static_cast<std::size_t>(width);
    };
    features_ = activations_.take(rows(features_size()));
    memory_.normed = activations_.take(rows(config_.hidden_size));
    memory_.projected = activations_.take(rows(config_.query_size() + 2 * config_.kv_size()));
    memory_.mixed = activations_.take(rows(config_.query_size()));
    memory_.widened = activations_.take(rows(2 * config_.intermediate_size));
    memory_.activated = activations_.take(rows(config_.intermediate_size));
    memory_.stream = floats_.take(rows(config_.hidden_size));
    if (config_.conv_taps > 0) {
      memory_.output = floats_.take(rows(config_.hidden_size));
      memory_.conv_factors = floats_.take(rows(config_.conv_factors()));
    }
    const auto texts = static_cast<std::size_t>(max_texts_);
    if (!config_.is_dflash()) root_ = floats_.take(texts * static_cast<std::size_t>(config_.hidden_size));
    memory_.logits = logits_memory_.take(texts * static_cast<std::size_t>(config_.block_length) *
                                         static_cast<std::size_t>(shape_.vocab_size));
    static_assert(sizeof(batch_sequence) % sizeof(std::int32_t) == 0);
    lines_.positions = integers_.take(rows(1));
    lines_.sequence_of = integers_.take(rows(1));
    lines_.sequences =
        reinterpret_cast<batch_sequence*>(integers_.take(texts * sizeof(batch_sequence) / sizeof(std::int32_t)));
    const auto mask = [&] {
      return reinterpret_cast<std::uint32_t*>(integers_.take(rows((config_.block_length + 32) / 32)));
    };
    lines_.seen = {mask(), nullptr};
    if (config_.has_windows())
      lines_.windowed = {mask(), config_.sight(true).window > 0 ? integers_.take(rows(1)) : nullptr};
    lines_.tokens = integers_.take(rows(1));
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
    const int n_lanes = part.n_lanes(), n_rows = n_lanes * part.max;
    detail::gather_states(
        detail::gather_job<NumberT>::of(backend, config_.hidden_layers, config_.hidden_size, max_positions_, features_),
        part, lines_, stream);
    const int rows = products_.planned(n_rows);
    products_.multiply(features_product_, weights_.features.matrix, features_, memory_.stream, rows, stream);
    normalise(weights_.features_norm.scale, n_rows, stream);
    if (!config_.is_dflash()) {
      detail::keep_states(memory_.normed, context.states.data(), config_.hidden_size, max_positions_, lines_, n_rows,
                          stream);
    }
    walk(read_steps_, read_shape_, context, lines_.view(n_lanes, part.max, 1), stream);
  }

  // Writes the stream of n rows for each lane before the first layer. For DFlash it is the embedding of the pending
  // token, and the mask token's in each further row.
  void begin_stream(const context_type& context, int n_lanes, int n, cudaStream_t stream) const {
    const NumberT* table = weights_.embedding != nullptr ? weights_.embedding : target_->embedding;
    detail::embed<NumberT>(
        {lines_.tokens, table, vocab_size_, config_.hidden_size, memory_.stream, 0, config_.embedding_scale},
        config_.is_dflash() ? n_lanes * n : n_lanes, stream);
    if (config_.is_dflash()) return;
    normalise(weights_.pending_norm.scale, n_lanes, stream);
    products_.multiply(pending_product_, weights_.pending.matrix, memory_.normed, root_, products_.planned(n_lanes),
                       stream);
    const detail::block_draft_rows lines = lines_;
    launch(
        "begin_block", detail::begin_block<NumberT>,
        {.grid = dim3(static_cast<unsigned>(n), static_cast<unsigned>(n_lanes)), .threads = detail::block_row_threads},
        stream, root_, context.states.data(), weights_.masked, memory_.stream, config_.hidden_size, max_positions_,
        lines);
  }

  // Returns the indices of the rows that have logits, for blocks of this length: [lanes][length].
  const std::int32_t* written_rows(int length) const {
    return written_.data() + static_cast<std::ptrdiff_t>(length - 1) * max_texts_ * config_.block_length;
  }

  void normalise(const float* scale, int n, cudaStream_t stream) const {
    auto job = detail::normalise_job<NumberT>::of(memory_.stream, config_.hidden_size, config_.norm_epsilon);
    job.norms[0] = {scale, nullptr, memory_.normed};
    detail::normalise(job, n, stream);
  }

  block_draft_config config_;
  int max_texts_;
  weights_type weights_;
  std::shared_ptr<const model_weights<NumberT>> target_;
  int vocab_size_;
  int max_positions_;
  model_config shape_;
  detail::model_steps steps_;
  model_config read_shape_;  // shape_ without query heads: a read computes no queries
  std::vector<detail::model_step> read_steps_;
  detail::rotary_tables rotary_;
  AttentionT attention_;
  matrix_products products_;
  detail::markov_head<NumberT, LogitT> markov_;
  detail::candidate_selector<NumberT, LogitT> selector_;
  std::optional<detail::block_refiner<NumberT, LogitT>> refiner_;
  int features_product_ = 0, pending_product_ = 0;  // the latter in the library's own layout alone
  detail::step_products numbers_;
  device_array<std::int32_t> written_;  // [block_length][max_texts * block_length], as written_rows has it

  detail::array_pieces<NumberT> activations_;
  detail::array_pieces<float> floats_;
  detail::array_pieces<LogitT> logits_memory_;
  detail::array_pieces<std::int32_t> integers_;
  NumberT* features_ = nullptr;  // [most_rows()][layers read * hidden_size]
  float* root_ = nullptr;        // [max_texts][hidden_size]
  detail::model_memory<NumberT, LogitT>
      memory_;  // most_rows() rows of each array, of logits max_texts * block_length; in a read, `projected` has keys
                // and values alone
  detail::block_draft_rows lines_{};
};

}  // namespace espalier::cuda
