// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/files/safetensors_file.hpp"
#include "espalier/model/files/tensor_reader.hpp"
#include "espalier/model/files/weight_row.hpp"
#include "espalier/model/files/weight_storage.hpp"
#include "espalier/model/files/weight_type.hpp"
#include "espalier/model/llama/block_draft_config.hpp"
#include "espalier/model/llama/block_draft_tensors.hpp"
#include "espalier/model/llama/elementwise.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/model/llama/model_steps.hpp"
#include "espalier/model/llama/model_tensors.hpp"
#include "espalier/model/llama/model_weights.hpp"
#include "espalier/model/llama/rotary_table.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/model/llama/transformer_pass.hpp"
#include "espalier/model/llama/weight_matrix.hpp"

namespace espalier {

//! The weights of a block draft in F32, all in one block of memory, and the target's output matrix, `head`. Key and
//! value projections are one matrix, keys first.
//!
//! Complexity  load: peak memory is the weights as held and a buffer of 128 KiB or one row
//! Errors      model_error for a tensor that is missing, that has another shape or dtype than the config asks for, or
//!             that has no place in the draft
struct block_draft_weights {
  using linear_type = model_weights::linear_type;
  using norm_type = model_weights::norm_type;
  //! A layer of a transformer, but with two matrices in the place of query_key_value.
  struct layer_type : model_weights::layer_type {
    linear_type query, key_value;
  };

  detail::float_block block;
  linear_type features;  //!< [hidden_size][layers read * hidden_size]
  linear_type pending;   //!< [hidden_size][hidden_size]; DFlash has neither this, nor pending_norm, nor masked
  norm_type features_norm, pending_norm, final_norm;
  float* masked = nullptr;  //!< [block_length][hidden_size], added to the rows of tokens that are to be drafted
  std::vector<layer_type> layers;
  linear_type head;  //!< the target's output matrix

  //! The parts of a Markov head. Gates and a recurrent unit read the row's state by gate_of_state, and by gate_of_path
  //! the numbers of the path: the embedding of the token before, or the unit's last state and that embedding.
  struct {
    float* tokens = nullptr;        //!< [vocab_size][markov_rank] the embeddings of the tokens before
    float* gate_of_path = nullptr;  //!< [markov_gates][markov_rank or 2 * markov_rank]
    float* gate_bias = nullptr;     //!< [markov_gates]
    weight_matrix gate_of_state;    //!< [markov_gates][hidden_size]
    weight_matrix out;              //!< [vocab_size][markov_rank]
  } markov;

  std::size_t bytes() const { return block.used() * sizeof(float); }

  //! Numbers of the path that the Markov head's gates read.
  static int path_inputs(const block_draft_config& c) {
    return (c.markov == block_draft_config::markov_kind::rnn ? 2 : 1) * c.markov_rank;
  }

  static block_draft_weights load(const block_draft_config& config, safetensors_file& file) {
    block_draft_weights weights;
    weights.layers.resize(static_cast<std::size_t>(config.n_layers));
    weights.shape(config);
    const detail::whole_model all{config};
    loader to{{weights, all, weight_storage::f32}, config};
    // Shapes first: a config that claims too much is refused before memory is taken for it.
    detail::block_draft_tensors(config, file, to, true).read();
    weights.place(config);
    weights.block = detail::float_block(weights.block.used(), true);
    weights.place(config);
    detail::block_draft_tensors(config, file, to, false).read();
    return weights;
  }

 private:
  void shape(const block_draft_config& c) {
    const auto matrix = [&](detail::part_place place) {
      const detail::matrix_size size = detail::size_of(c, place);
      detail::linear_at(*this, place).matrix = weight_matrix(size.outputs, size.inputs);
    };
    features.matrix = weight_matrix(c.hidden_size, static_cast<int>(c.hidden_layers.size()) * c.hidden_size);
    if (c.markov_gates() > 0) markov.gate_of_state = weight_matrix(c.markov_gates(), c.hidden_size);
    if (c.markov_rank > 0) markov.out = weight_matrix(c.vocab_size, c.markov_rank);
    if (!c.is_dflash()) matrix({detail::model_part::pending});
    for (int i = 0; i < c.n_layers; ++i) {
      using enum detail::model_part;
      for (const detail::model_part part : {query, key_value, attention_out, gate, up, down})
        matrix({part, i});
    }
  }

  // Gives every part its place in the block, or only counts the floats if the block has no memory yet.
  void place(const block_draft_config& c) {
    const auto norm = [&] { return norm_type{block.take(static_cast<std::size_t>(c.hidden_size))}; };
    const auto place = [&](linear_type& part) { part.matrix.place(block.take(part.matrix.storage_floats())); };
    place(features);
    features_norm = norm();
    if (!c.is_dflash()) {
      pending_norm = norm();
      place(pending);
      masked = block.take(static_cast<std::size_t>(c.block_length) * static_cast<std::size_t>(c.hidden_size));
    }
    for (layer_type& layer : layers) {
      layer.attention_norm = norm();
      layer.mlp_norm = norm();
      for (float** of_heads : {&layer.query_norm, &layer.key_norm})
        *of_heads = c.query_key_norm ? block.take(static_cast<std::size_t>(c.head_dim)) : nullptr;
      for (linear_type* part :
           {&layer.query, &layer.key_value, &layer.attention_out, &layer.up, &layer.gate, &layer.down})
        place(*part);
    }
    final_norm = norm();
    if (c.markov_rank == 0) return;
    const auto floats = [&](int rows, int columns) {
      return block.take(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
    };
    markov.tokens = floats(c.vocab_size, c.markov_rank);
    markov.out.place(block.take(markov.out.storage_floats()));
    if (c.markov_gates() == 0) return;
    markov.gate_of_path = floats(c.markov_gates(), path_inputs(c));
    markov.gate_bias = floats(c.markov_gates(), 1);
    markov.gate_of_state.place(block.take(markov.gate_of_state.storage_floats()));
  }

  struct loader : detail::weight_loader<block_draft_weights, detail::whole_model> {
    using base = detail::weight_loader<block_draft_weights, detail::whole_model>;

    const block_draft_config& config;
    std::vector<float> gate_row{};

    static bool is_own(detail::model_part part) {
      return part == detail::model_part::masked || part >= detail::model_part::markov_tokens;
    }
    void expect_rows(detail::part_place place, int first, int rows, weight_type type) {
      if (!is_own(place.part)) base::expect_rows(place, first, rows, type);
    }
    void set_row(detail::part_place place, int row, const weight_row& read) {
      using enum detail::model_part;
      auto& markov = weights.markov;
      const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(row) * read.n;
      if (!is_own(place.part)) return base::set_row(place, row, read);
      if (place.part == masked) read.decode(weights.masked + first);
      if (place.part == markov_tokens) read.decode(markov.tokens + first);
      if (place.part == markov_out) markov.out.set_row(row, read);
      if (place.part == markov_gate) set_gate(row, read);
    }
    void set_vector(detail::part_place place, const float* from, int n) {
      if (!is_own(place.part)) return base::set_vector(place, from, n);
      if (place.part == detail::model_part::markov_gate_bias) std::copy_n(from, n, weights.markov.gate_bias);
    }
    // Divides a row of the gates' matrix. The file has the columns of the row's state first for gates, and last for a
    // recurrent unit.
    void set_gate(int row, const weight_row& read) {
      gate_row.resize(static_cast<std::size_t>(read.n));
      read.decode(gate_row.data());
      const int n = path_inputs(config);
      const bool state_first = config.markov == block_draft_config::markov_kind::gated;
      const float* path = gate_row.data() + (state_first ? config.hidden_size : 0);
      std::copy_n(path, n, weights.markov.gate_of_path + static_cast<std::ptrdiff_t>(row) * n);
      const std::span<const float> state(gate_row.data() + (state_first ? 0 : n),
                                         static_cast<std::size_t>(config.hidden_size));
      weights.markov.gate_of_state.set_row(row, {weight_type::f32, std::as_bytes(state), config.hidden_size});
    }
  };
};

//! The memory of a block_draft_model for one text: by position, keys and values of each layer and the states that they
//! come from; and the target's hidden states that the model's next pass reads.
struct block_draft_context {
  contiguous_kv kv;
  std::vector<float> states;  //!< [max_positions][hidden_size]
  std::vector<float> unread;  //!< [rows][layers read * hidden_size], of positions from first_unread on
  int first_unread = 0;
  int n_unread = 0;
};

//! A request for a block: for the tokens after the pending token. All positions of the text before the pending token
//! must have been given to read(); if there are none, the block sees itself alone.
struct block_draft_request {
  block_draft_context* context;
  std::span<const token_id> text;  //!< 1 to max_positions() tokens, the last of which is the pending one
  int place = 0;                   //!< index of the block in logits(); the requests of one pass have different ones

  token_id pending() const { return text.back(); }
  int position() const { return static_cast<int>(text.size()) - 1; }
};

namespace detail {

// Writes the hidden states of a row of the target's last pass, [layers read][hidden_size].
template <class BackendT>
void gather_states(const block_draft_config& config, const BackendT& backend, std::int32_t row, float* to) {
  for (const int layer : config.hidden_layers) {
    const std::span<const float> state = backend.hidden(layer, row);
    if (state.size() != static_cast<std::size_t>(config.hidden_size)) {
      raise<input_error>("the target's hidden states have ", state.size(), " numbers, but the block draft reads ",
                         config.hidden_size, ".");
    }
    to = std::copy(state.begin(), state.end(), to);
  }
}

// The caches of all texts of a pass as one store: sequence i is the text of request i.
struct block_draft_caches {
  std::span<const block_draft_request> requests;
  int slots;

  float* key(int layer, int sequence, int slot) const { return of(sequence).key(layer, 0, slot); }
  float* value(int layer, int sequence, int slot) const { return of(sequence).value(layer, 0, slot); }
  int capacity() const { return slots; }

 private:
  contiguous_kv& of(int sequence) const { return requests[static_cast<std::size_t>(sequence)].context->kv; }
};

}  // namespace detail

//! A block-diffusion draft on the host: from the hidden states of chosen layers of the target at every position of the
//! text, and from the pending token, one pass gives the logits of the next positions. All rows of a block see one
//! another and the text before it. The draft uses the target's embedding and output matrix, which both models share,
//! and the same threads as the target.
//!
//! With a Markov head (DSpark), correct() adds to a row what depends on the drafted tokens before it.
//!
//!     auto target = llama_backend::load("models/target", {.hidden_layers = {1, 3, 5}});
//!     block_diffusion drafter(block_draft_model::load("models/block", target));
//!
//! Shapes      config.json and model.safetensors in the folder, in a layout of block_draft_config
//! Complexity  read: a copy, and a pass for each 64 rows of a text; forward: a pass for each 64 rows that all its texts
//!             have left unread, then one pass with at most length + 1 rows for each text; no allocation if an earlier
//!             forward, or reserve, was for as many texts, and an earlier forward had as high a place. correct: a
//!             product with the Markov head's [vocab_size][markov_rank]
//! Law         bitwise: no logit depends on the number of threads, on other texts, or on how many rows each read() gets
//! Errors      load: model_error for files that cannot be read, or that do not fit the target; option_error for a
//!             target whose option hidden_layers lacks a layer that the draft reads. read: input_error for states of
//!             another width. forward: input_error for a token outside the vocabulary. NaN weights give NaN logits
//! Source      Chen et al., DFlash; speculators 0.9.0, models/dspark. The library's own layout adds a matrix for the
//!             pending token; its reference is examples/models/block.py
class block_draft_model {
 public:
  using context_type = block_draft_context;
  using request_type = block_draft_request;

  static block_draft_model load(const std::string& folder, const llama_backend& target) {
    const block_draft_config config = block_draft_config::load(folder);
    detail::check_block_draft_target(config, target);
    safetensors_file file(folder + "/model.safetensors");
    return block_draft_model(config, block_draft_weights::load(config, file), target);
  }

  block_draft_model(const block_draft_config& config, block_draft_weights weights, const llama_backend& target)
      : config_(config),
        weights_(std::move(weights)),
        target_(target.weights()),
        max_positions_((std::min)(config.max_positions, target.max_positions())),
        pass_(config, detail::model_steps(config, {}, true), thread_team::shared(target.n_threads()),
              {.max_rows = read_rows, .max_positions = max_positions_ + config.block_length}) {
    detail::check_block_draft_target(config, target);
    weights_.head = target_->head;
    pass_.reserve_slots(slots());
    const auto rows = static_cast<std::size_t>(config.block_length) + 1;
    mask_.resize(rows * ((rows + 31) / 32));
    reads_.reserve(read_rows);
    make_places(1);
    path_.resize(static_cast<std::size_t>(3 * config.markov_rank + config.markov_gates()));
    reserve(1);
  }

  //! Takes memory for passes over n_texts texts.
  void reserve(int n_texts) {
    if (n_texts <= n_texts_) return;
    n_texts_ = n_texts, buffers_ = {};
    const int rows = n_texts * (config_.block_length + 1);
    pass_.reserve((std::max)(read_rows, rows));
    place_buffers();
    buffers_ = detail::float_block(buffers_.used(), false);
    place_buffers();
    requests_.reserve(static_cast<std::size_t>(n_texts));
    sequences_.reserve(static_cast<std::size_t>(n_texts));
    for (std::vector<std::int32_t>* of_rows : {&tokens_, &positions_, &outputs_})
      of_rows->reserve(static_cast<std::size_t>(rows));
  }

  int vocab_size() const { return target_->head.matrix.outputs(); }
  int block_length() const { return config_.block_length; }
  int max_positions() const { return max_positions_; }
  const block_draft_config& config() const { return config_; }
  std::size_t weight_bytes() const { return weights_.bytes(); }

  context_type make_context() const {
    return {contiguous_kv(config_.n_layers, config_.kv_size(), 1, slots()),
            std::vector<float>(static_cast<std::size_t>(max_positions_) * width()),
            std::vector<float>(read_rows * static_cast<std::size_t>(features_width()))};
  }

  //! Copies the target's hidden states of `rows`, which are rows of its last pass. Their tokens are at positions
  //! position, position + 1, ... Rows at positions from max_positions() on are skipped.
  template <class BackendT>
  requires requires(const BackendT& backend) {
    { backend.hidden(0, 0) } -> std::convertible_to<std::span<const float>>;
  }
  void read(context_type& context, const BackendT& backend, std::span<const std::int32_t> rows, int position) {
    const auto wanted = static_cast<std::size_t>((std::max)(0, max_positions_ - position));
    // Rows that are read again replace the earlier ones.
    context.n_unread = std::clamp(position - context.first_unread, 0, context.n_unread);
    if (context.first_unread + context.n_unread != position) {
      take_unread(context);
      compute_reads();
      context.first_unread = position;
    }
    for (const std::int32_t row : rows.first((std::min)(rows.size(), wanted))) {
      if (context.n_unread == read_rows) take_unread(context);
      detail::gather_states(config_, backend, row, context.unread.data() + at(context.n_unread, features_width()));
      ++context.n_unread;
    }
  }

  //! Computes the requested blocks, `length` tokens each.
  //!
  //! Pre         1 <= length <= block_length(); no two requests have the same place or the same context
  void forward(std::span<const request_type> requests, int length) {
    int last_place = 0;
    for (const request_type& r : requests) {
      if (r.pending() < 0 || r.pending() >= vocab_size()) {
        raise<input_error>("the pending token is ", r.pending(), ", but the vocabulary ends at ", vocab_size() - 1,
                           ".");
      }
      last_place = (std::max)(last_place, r.place);
    }
    if (requests.empty()) return;
    reserve(static_cast<int>(requests.size()));
    make_places(last_place + 1);
    requests_.assign(requests.begin(), requests.end());
    std::sort(requests_.begin(), requests_.end(),
              [](const request_type& x, const request_type& y) { return x.place < y.place; });
    for (const request_type& r : requests_) {
      take_unread(*r.context);
      lengths_[static_cast<std::size_t>(r.place)] = length;
    }
    compute_reads();
    detail::block_draft_caches caches{requests_, slots()};
    block_place place{*this, length};
    pass_.run(place, weights_, caches, batch_of(length));
  }

  //! Returns the first `length` rows of the last block that was computed for this place.
  //!
  //! Shapes      [length][vocab_size], valid until the next forward()
  vocab_rows<float> logits(int place, int length) const {
    return {logits_.data() + size_of_place() * place, length, vocab_size()};
  }

  //! Returns whether correct() changes rows: the draft has a Markov head.
  bool corrects() const { return config_.markov_rank > 0; }

  //! Adds what the Markov head gives for the tokens from the pending one to the node's to a row of logits: the row of
  //! the node's depth in the last block that was computed for this place. A node below the last row has the last row's
  //! gates.
  //!
  //! Shapes      row [vocab_size]
  //! Errors      input_error for a token of the path outside the vocabulary
  void correct(int place, tree_view tree, node_id node, std::span<float> row) {
    if (!corrects()) return;
    const float* vector = markov_vector(place, tree, node);
    pass_.team().run([&](int thread) {
      pass_.multiply(thread, weights_.markov.out, vector, 1, row.data(), true, weights_.markov.out);
    });
  }

 private:
  static constexpr int read_rows = 64;  // most rows of a pass over unread states

  struct read_row {
    context_type* context;
    int position;
  };

  // The PlaceT of a pass over blocks: begin_rows() writes the stream before the first layer, and the logits of each
  // request go to its place in logits_.
  struct block_place {
    block_draft_model& model;
    int length;

    void embed(detail::transformer_pass&, int thread, const forward_batch_view&) {
      model.begin_rows(thread, model.rows_of(length));
    }
    void head(detail::transformer_pass&, int thread, const detail::model_step&, const forward_batch_view&) {
      model.multiply_head(thread, length);
    }
  };

  int features_width() const { return weights_.features.matrix.inputs(); }
  std::size_t width() const { return static_cast<std::size_t>(config_.hidden_size); }
  // Rows of a pass for one text that drafts `length` tokens.
  int rows_of(int length) const { return length + (config_.from_pending ? 0 : 1); }
  std::ptrdiff_t size_of_place() const { return at(config_.block_length, vocab_size()); }
  int slots() const { return max_positions_ + config_.block_length; }
  static std::ptrdiff_t at(int row, int width) { return static_cast<std::ptrdiff_t>(row) * width; }
  float* stream(int row) const { return pass_.rows(detail::step_rows::stream) + at(row, config_.hidden_size); }
  float* normed(int row) const { return pass_.rows(detail::step_rows::normed) + at(row, config_.hidden_size); }

  void place_buffers() {
    const auto rows = [&](int n, int size) { return buffers_.take(static_cast<std::size_t>(at(n, size))); };
    features_ = rows(read_rows, features_width());
    pending_ = rows(n_texts_, config_.hidden_size);
    root_ = rows(n_texts_, config_.hidden_size);
    read_key_value_ = rows(read_rows * config_.n_layers, 2 * config_.kv_size());
  }

  // Makes room for the blocks of places 0 to n - 1.
  void make_places(int n) {
    if (n <= static_cast<int>(lengths_.size())) return;
    lengths_.resize(static_cast<std::size_t>(n), config_.block_length);
    logits_.resize(static_cast<std::size_t>(size_of_place() * n));
    gates_.resize(static_cast<std::size_t>(at(n * config_.block_length, config_.markov_gates())));
  }

  // Makes the batch of a pass: rows for each request, which see one another. The last `length` of them have logits. In
  // the library's own layout it also writes the normalised embeddings of pending tokens to pending_.
  forward_batch_view batch_of(int length) {
    const int n = rows_of(length), words = (n + 31) / 32;
    for (int i = 0; i < n * words; ++i) {
      const int rest = n - i % words * 32;
      mask_[static_cast<std::size_t>(i)] = rest >= 32 ? ~0U : (1U << rest) - 1U;
    }
    sequences_.clear(), tokens_.clear(), positions_.clear(), outputs_.clear();
    for (const request_type& r : requests_) {
      const auto i = static_cast<std::int32_t>(sequences_.size()), first = i * n;
      float* pending = pending_ + at(i, config_.hidden_size);
      if (!config_.is_dflash()) {
        target_->embed(r.pending(), pending);
        detail::rms_norm(pending, config_.hidden_size, weights_.pending_norm.scale, config_.norm_epsilon, pending);
      }
      sequences_.push_back({i, first, first + n, r.position(), 0, words});
      for (int row = 0; row < n; ++row) {
        tokens_.push_back(r.pending());
        positions_.push_back(r.position() + row);
        if (row >= n - length) outputs_.push_back(first + row);
      }
    }
    return {tokens_, positions_, positions_, sequences_, mask_, outputs_};
  }

  // Moves the unread rows of a text to reads_, and computes them whenever there are read_rows of them.
  void take_unread(context_type& context) {
    for (int row = 0; row < context.n_unread; ++row) {
      std::copy_n(context.unread.data() + at(row, features_width()), features_width(),
                  features_ + at(static_cast<int>(reads_.size()), features_width()));
      reads_.push_back({&context, context.first_unread + row});
      if (reads_.size() == read_rows) compute_reads();
    }
    context.first_unread += std::exchange(context.n_unread, 0);
  }

  void compute_reads() {
    if (!reads_.empty()) pass_.team().run([&](int thread) { compute_read(thread); });
    reads_.clear();
  }

  // Computes one thread's part of a pass over reads_: states, and keys and values of all layers. Between barriers,
  // threads write disjoint parts.
  void compute_read(int thread) {
    thread_team& team = pass_.team();
    const auto n = static_cast<int>(reads_.size());
    pass_.multiply(thread, weights_.features.matrix, features_, n, stream(0), false,
                   weights_.layers.front().key_value.matrix);
    team.barrier();
    const auto [first, last] = team.share(thread, n);
    for (int row = first; row < last; ++row) {
      const auto [context, position] = reads_[static_cast<std::size_t>(row)];
      detail::rms_norm(stream(row), config_.hidden_size, weights_.features_norm.scale, config_.norm_epsilon,
                       normed(row));
      std::copy_n(normed(row), width(), context->states.data() + at(position, config_.hidden_size));
    }
    team.barrier();
    const int size = 2 * config_.kv_size();
    for (int i = 0; i < config_.n_layers; ++i) {
      const auto next = static_cast<std::size_t>((i + 1) % config_.n_layers);
      pass_.multiply(thread, weights_.layers[static_cast<std::size_t>(i)].key_value.matrix, normed(0), n,
                     read_key_value_ + at(i * n, size), false, weights_.layers[next].key_value.matrix);
    }
    team.barrier();
    for (int i = 0; i < config_.n_layers; ++i) {
      for (int row = first; row < last; ++row)
        keep_key_value(i, read_key_value_ + at(i * n + row, size), reads_[static_cast<std::size_t>(row)]);
    }
  }

  // Writes the keys of a row, normalised and rotated, and its values into the cache. x: keys, then values,
  // [2 kv_size]; the keys in x may change
  void keep_key_value(int layer, float* x, const read_row& row) const {
    const detail::rotary_table& rotary = pass_.rotary();
    const float* norm = weights_.layers[static_cast<std::size_t>(layer)].key_norm;
    float* key = row.context->kv.key(layer, 0, row.position);
    for (int first = 0; first < config_.kv_size(); first += config_.head_dim) {
      if (norm) detail::rms_norm(x + first, config_.head_dim, norm, config_.norm_epsilon, x + first);
      detail::rotate_head(x + first, config_.head_dim, config_.rotary_dims, rotary.cosine(row.position),
                          rotary.sine(row.position), 1.0F, key + first);
    }
    std::copy_n(x + config_.kv_size(), config_.kv_size(), row.context->kv.value(layer, 0, row.position));
  }

  // Writes the thread's part of the logits, and of the products of a Markov head's gates with the rows' states. It
  // makes one product of each kind for each run of places that follow one another if blocks have their whole length,
  // else one for each place.
  void multiply_head(int thread, int length) {
    for (std::size_t i = 0, next = 0; i < requests_.size(); i = next) {
      next = i + 1;
      while (length == config_.block_length && next < requests_.size() &&
             requests_[next].place == requests_[next - 1].place + 1)
        ++next;
      pass_.multiply(thread, weights_.head.matrix, normed(static_cast<int>(i) * length),
                     static_cast<int>(next - i) * length, logits_.data() + size_of_place() * requests_[i].place, false,
                     weights_.layers.front().query.matrix);
      if (config_.markov_gates() == 0) continue;
      const int first = requests_[i].place * config_.block_length;
      pass_.multiply(thread, weights_.markov.gate_of_state, normed(static_cast<int>(i) * length),
                     static_cast<int>(next - i) * length, gates_.data() + at(first, config_.markov_gates()), false,
                     weights_.layers.front().query.matrix);
    }
  }

  // Returns the vector of a Markov head after a path: [markov_rank], valid until the next call.
  const float* markov_vector(int place, tree_view tree, node_id node) {
    using enum block_draft_config::markov_kind;
    const int rank = config_.markov_rank, inputs = block_draft_weights::path_inputs(config_);
    float* const state = path_.data();
    float *const token = state + rank, *const vector = token + rank, *const gates = vector + rank;
    const auto sigmoid = [](float x) { return 1.0F / (1.0F + std::exp(-x)); };
    const auto read_token = [&](node_id of) {
      const token_id id = tree.token[of];
      if (id < 0 || id >= vocab_size()) {
        raise<input_error>("the block draft is asked for the row after token ", id, ", but the vocabulary ends at ",
                           vocab_size() - 1, ".");
      }
      std::copy_n(weights_.markov.tokens + at(id, rank), rank, token);
    };
    // Writes the gates of the row at a depth: they read `from`, [inputs].
    const auto compute_gates = [&](int depth, const float* from) {
      const int last = lengths_[static_cast<std::size_t>(place)] - 1;
      const int row = place * config_.block_length + (std::min)(depth, last);
      const float* of_state = gates_.data() + at(row, config_.markov_gates());
      for (int g = 0; g < config_.markov_gates(); ++g) {
        const float* weights = weights_.markov.gate_of_path + at(g, inputs);
        gates[g] = std::inner_product(weights, weights + inputs, from, of_state[g] + weights_.markov.gate_bias[g]);
      }
    };
    if (config_.markov != rnn) {
      read_token(node);
      if (config_.markov == vanilla) return token;
      compute_gates(tree.depth[node], token);
      for (int i = 0; i < rank; ++i)
        vector[i] = sigmoid(gates[i]) * token[i];
      return vector;
    }
    std::fill_n(state, rank, 0.0F);
    for (int depth = 0; depth <= tree.depth[node]; ++depth) {
      node_id ancestor = node;
      while (tree.depth[ancestor] > depth)
        ancestor = tree.parent[ancestor];
      read_token(ancestor);
      compute_gates(depth, state);
      for (int i = 0; i < rank; ++i) {
        const float keep = sigmoid(gates[i]);
        state[i] = keep * state[i] + (1.0F - keep) * std::tanh(gates[rank + i]);
      }
    }
    for (int i = 0; i < rank; ++i)
      vector[i] = std::tanh(gates[2 * rank + i]);
    return vector;
  }

  // Writes the thread's columns of the stream before the first layer, n rows for each request: the sum of the pending
  // token's product and the last state of the context. Rows of tokens that are to be drafted add their row of `masked`.
  // For DFlash it writes the thread's rows: the embedding of the pending token, and the mask token's for each further
  // row.
  void begin_rows(int thread, int n) {
    if (config_.is_dflash()) {
      const auto [first, last] = pass_.team().share(thread, static_cast<int>(requests_.size()) * n);
      for (int row = first; row < last; ++row) {
        const token_id pending = requests_[static_cast<std::size_t>(row / n)].pending();
        target_->embed(row % n == 0 ? pending : config_.mask_token, stream(row));
      }
      return;
    }
    pass_.multiply(thread, weights_.pending.matrix, pending_, static_cast<int>(requests_.size()), root_, false,
                   weights_.layers.front().query.matrix);
    const auto [begin, end] = pass_.products().outputs_of(thread, weights_.pending.matrix);
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      const request_type& r = requests_[i];
      float* root = root_ + at(static_cast<int>(i), config_.hidden_size);
      const float* state =
          r.position() > 0 ? r.context->states.data() + at(r.position() - 1, config_.hidden_size) : nullptr;
      for (int o = begin; state && o < end; ++o)
        root[o] += state[o];
      float* to = stream(static_cast<int>(i) * n);
      std::copy(root + begin, root + end, to + begin);
      for (int row = 1; row < n; ++row) {
        const float* masked = weights_.masked + at(row - 1, config_.hidden_size);
        to += config_.hidden_size;
        for (int o = begin; o < end; ++o)
          to[o] = root[o] + masked[o];
      }
    }
  }

  block_draft_config config_;
  block_draft_weights weights_;
  std::shared_ptr<const model_weights> target_;
  int max_positions_;
  detail::transformer_pass pass_;
  std::vector<std::uint32_t> mask_;     // [block_length + 1][words], each row of a block sees all of its rows
  int n_texts_ = 0;                     // texts that a pass has room for
  std::vector<read_row> reads_;         // rows of a pass over unread states
  std::vector<request_type> requests_;  // the requests of the pass, sorted by place
  std::vector<batch_sequence> sequences_;
  std::vector<std::int32_t> tokens_, positions_, outputs_;  // of the batch; slots are positions

  detail::float_block buffers_;
  float* features_ = nullptr;        // [read_rows][layers read * hidden_size]
  float* pending_ = nullptr;         // [texts][hidden_size]
  float* root_ = nullptr;            // [texts][hidden_size]
  float* read_key_value_ = nullptr;  // [n_layers][rows of the pass, at most read_rows][2 kv_size]
  std::vector<float> logits_;        // [places][block_length][vocab_size]
  std::vector<int> lengths_;         // by place: rows of its last block, or block_length if it had none
  std::vector<float> gates_;         // [places][block_length][markov_gates] what gates read from the rows' states
  std::vector<float> path_;          // of markov_vector(): a state, a token's embedding, a vector, and gates
};

}  // namespace espalier
