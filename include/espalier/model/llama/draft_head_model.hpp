// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/files/tensor_reader.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/files/weight_row.hpp"
#include "espalier/model/llama/draft_head_config.hpp"
#include "espalier/model/llama/draft_head_files.hpp"
#include "espalier/model/llama/draft_target.hpp"
#include "espalier/model/llama/draft_tokens.hpp"
#include "espalier/model/llama/elementwise.hpp"
#include "espalier/model/llama/model_steps.hpp"
#include "espalier/model/llama/model_weights.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/model/llama/transformer_pass.hpp"
#include "espalier/model/llama/weight_matrix.hpp"

namespace espalier {

//! The weights of a draft head: the weights of its transformer, and of the projection of the target's states.
//!
//! Errors      model_error for a tensor that is missing, that has another shape or dtype than the config asks for, or
//!             that has no place in the head; and for tables of the vocabulary that contradict one another
struct draft_head_weights : model_weights, draft_head_norms {
  detail::float_block own;
  weight_matrix projection;      //!< [hidden_size][projection_inputs()]
  std::vector<token_id> tokens;  //!< [head_size] the token of each row of the head; empty: row i is of token i
  std::vector<float> masked;     //!< [hidden_size] a P-EAGLE head's learned state, projected; empty in other heads

  static draft_head_weights load(const draft_head_config& config, tensor_source& file) {
    draft_head_weights weights;
    static_cast<model_weights&>(weights) = model_weights::load(config, file);
    weights.read_projection(config, file);
    static_cast<draft_head_norms&>(weights) = draft_head_norms::read(config, file);
    if (config.is_parallel()) weights.masked = detail::read_masked(config, file, weights);
    weights.tokens = detail::read_draft_tokens(config, file);
    return weights;
  }

 private:
  void read_projection(const draft_head_config& c, tensor_source& file) {
    projection = weight_matrix(c.hidden_size, c.projection_inputs());
    projection.expect_rows(0, c.hidden_size, detail::read_projection(c, file, true, [](int, const weight_row&) {}));
    own = detail::float_block(projection.storage_floats(), true);
    projection.place(own.take(projection.storage_floats()));
    detail::read_projection(c, file, false,
                            [&](int row, const weight_row& values) { projection.set_row(row, values); });
  }
};

//! The memory of a draft_head_model for one text: keys and values by slot, and states.
struct draft_head_context {
  std::unique_ptr<contiguous_kv> kv;  //!< null until reserve()
  std::vector<float> features;        //!< [max_positions][hidden_size] the target's states by position, projected; for
                                      //!< an MTP head, not projected
  std::vector<float> states;          //!< [1 + nodes][hidden_size] states that rows have left for later rows
};

//! A draft head on the host, the model of feature_steps. An EAGLE-3 head has one layer or a few and reads the
//! target's hidden states of several layers, usually three; its vocabulary may be a part of the target's. An MTP head
//! has one layer, reads the state after the target's last layer, and shares the target's vocabulary. The constructor
//! makes the target keep the states that the head reads.
//!
//!     auto target = llama_backend::load("models/target");
//!     feature_steps drafter(draft_head_model::load("models/head", target));
//!
//! Shapes      config.json and model.safetensors in the folder, in a layout of draft_head_config; a GGUF file; or the
//!             target's own folder, if it holds an MTP head
//! Complexity  read: a product for each 64 rows, or a copy for an MTP head; forward: one pass. No allocation if an
//!             earlier pass had as many rows. A context has hidden_size floats, and keys and values, for each of
//!             max_positions() and for each node
//! Law         bitwise: no logit depends on the number of threads, on other texts, or on how many rows each read() gets
//! Errors      load: model_error for files that cannot be read, or that do not fit the target. read and forward:
//!             input_error for states of another width, and for a token outside the vocabulary. NaN weights give NaN
//!             logits
//! Source      Li et al., EAGLE-3; Gloeckle et al. and DeepSeek-V3, section 2.2, for MTP; the golden tests compare with
//!             speculators 0.9.0
class draft_head_model {
 public:
  using context_type = draft_head_context;

  static draft_head_model load(const std::string& path, const draft_target& target) {
    draft_head_config config = draft_head_config::load(path);
    config.require_parallel(false);
    return load(std::move(config), path, target);
  }

  //! Loads the head of a config that was read from the same path.
  static draft_head_model load(draft_head_config config, const std::string& path, const draft_target& target) {
    const auto files = draft_head_files::open(std::move(config), path, target.config(), target.where());
    return draft_head_model(files.config, draft_head_weights::load(files.config, *files.tensors), target);
  }

  draft_head_model(const draft_head_config& config, draft_head_weights weights, const draft_target& target)
      : config_(config),
        weights_(std::move(weights)),
        target_(target.weights()),
        max_positions_((std::min)(config.max_positions, target.max_positions())),
        pass_(config, detail::model_steps(config), thread_team::shared(target.n_threads()),
              {.max_rows = most_rows, .max_positions = max_positions_, .vocab_size = config.head_size}) {
    target.keep_hidden(config_.hidden_layers);
    if (!config_.has_head) weights_.head = target_->head;
    gathered_.resize(
        static_cast<std::size_t>(at(config_.is_mtp() ? most_rows : read_rows, weights_.projection.inputs())));
  }

  int vocab_size() const { return config_.vocab_size; }
  int max_positions() const { return max_positions_; }
  int max_rows() const { return most_rows; }
  std::span<const token_id> tokens() const { return weights_.tokens; }
  const draft_head_config& config() const { return config_; }
  const draft_head_weights& weights() const { return weights_; }
  std::size_t weight_bytes() const { return weights_.bytes() + weights_.own.used() * sizeof(float); }

  context_type make_context() const {
    return {nullptr, std::vector<float>(static_cast<std::size_t>(at(max_positions_, config_.hidden_size))), {}};
  }
  void reserve(context_type& context, int nodes) {
    context.kv = std::make_unique<contiguous_kv>(config_.n_layers, config_.kv_size(), 1, max_positions_ + nodes);
    context.states.resize(static_cast<std::size_t>(at(nodes + 1, config_.hidden_size)));
    pass_.reserve_slots(max_positions_ + nodes);
  }

  //! Reads the target's hidden states of `rows`, which are rows of its last pass. Their tokens are at positions
  //! position, position + 1, ...
  template <class BackendT>
  requires requires(const BackendT& backend) {
    { backend.hidden(0, 0) } -> std::convertible_to<std::span<const float>>;
  }
  void read(context_type& context, const BackendT& backend, std::span<const std::int32_t> rows, int position) {
    if (config_.is_mtp()) {
      for (const std::int32_t row : rows)
        gather(backend, row, context.features.data() + at(position++, config_.hidden_size));
      return;
    }
    for (; !rows.empty(); rows = rows.subspan((std::min)(rows.size(), std::size_t{read_rows}))) {
      const int n = static_cast<int>((std::min)(rows.size(), std::size_t{read_rows}));
      for (int i = 0; i < n; ++i)
        gather(backend, rows[static_cast<std::size_t>(i)], gathered_.data() + at(i, weights_.projection.inputs()));
      float* to = context.features.data() + at(position, config_.hidden_size);
      pass_.team().run([&](int thread) {
        pass_.multiply(thread, weights_.projection, gathered_.data(), n, to, false, weights_.projection);
      });
      position += n;
    }
  }

  //! Computes a feature_pass of feature_steps, or another pass with its members batch, contexts and states, and returns
  //! the logits of its outputs.
  //!
  //! Shapes      [n_outputs][tokens().size(), or vocab_size() if that is 0], valid until the next forward()
  template <class PassT>
  vocab_rows<float> forward(const PassT& pass) {
    const forward_batch_view batch = pass.batch.view();
    for (const token_id token : batch.tokens) {
      if (token < 0 || token >= vocab_size())
        raise<input_error>("the draft head is given token ", token, ", but the vocabulary ends at ", vocab_size() - 1,
                           ".");
    }
    if (batch.n_rows() > n_reserved_) {
      pass_.reserve(n_reserved_ = batch.n_rows());
      if (config_.is_mtp()) gathered_.resize(static_cast<std::size_t>(at(n_reserved_, 2 * config_.hidden_size)));
    }
    caches kv{pass.contexts};
    place_type<PassT> place{*this, pass};
    pass_.run(place, weights_, kv, batch);
    for (const batch_sequence& s : batch.sequences) {
      for (int row = s.row_begin; row < s.row_end; ++row)
        keep_state(pass, s.sequence, row);
    }
    return {pass_.rows(detail::step_rows::logits), static_cast<std::int32_t>(batch.outputs.size()), config_.head_size};
  }

 private:
  static constexpr int read_rows = 64;  // most rows of a product in read()
  static constexpr int most_rows = 320;

  // The caches of all texts of a pass as one store.
  struct caches {
    std::span<context_type* const> contexts;
    float* key(int layer, int sequence, int slot) const { return of(sequence).key(layer, 0, slot); }
    float* value(int layer, int sequence, int slot) const { return of(sequence).value(layer, 0, slot); }
    int capacity() const {
      int most = 0;
      for (const context_type* context : contexts)
        most = (std::max)(most, context->kv->capacity());
      return most;
    }

   private:
    contiguous_kv& of(int sequence) const { return *contexts[static_cast<std::size_t>(sequence)]->kv; }
  };

  // The PlaceT of a pass: begin_rows() writes the stream before the first layer.
  template <class PassT>
  struct place_type {
    draft_head_model& model;
    const PassT& pass;
    void embed(detail::transformer_pass&, int thread, const forward_batch_view& batch) const {
      model.begin_rows(pass, thread, batch);
    }
  };

  static std::ptrdiff_t at(int row, int width) { return static_cast<std::ptrdiff_t>(row) * width; }

  // Writes the states of a row of the target's last pass, [states read][state_size], normalised by projection_norm
  // unless that is empty. A head in the target's own files reads the last state after the target's final norm.
  template <class BackendT>
  void gather(const BackendT& backend, std::int32_t row, float* to) const {
    float* const begin = to;
    const int width = config_.state_size();
    for (const int layer : config_.hidden_layers) {
      const std::span<const float> state = backend.hidden(layer, row);
      if (state.size() != static_cast<std::size_t>(width)) {
        raise<input_error>("the target's hidden states have ", state.size(), " numbers, but the draft head reads ",
                           width, ".");
      }
      to = std::copy(state.begin(), state.end(), to);
    }
    if (config_.layout == model_config::layout_type::mtp_beside)
      detail::rms_norm(begin, width, target_->final_norm.scale, config_.norm_epsilon, begin);
    weights_.norm_states(config_, begin, [&](float* part, int n, const float* scale) {
      detail::rms_norm(part, n, scale, config_.norm_epsilon, part);
    });
  }

  // Writes the thread's rows of the stream before the first layer, and of the pairs (embedding, state) that the first
  // layer's attention reads. For an MTP head it writes the thread's rows of the pairs, and then the thread's columns of
  // the stream, which is the projection of the pairs.
  template <class PassT>
  void begin_rows(const PassT& pass, int thread, const forward_batch_view& batch) {
    const int width = config_.hidden_size;
    const bool is_mtp = config_.is_mtp();
    const float* token_norm = is_mtp ? weights_.token_norm.data() : weights_.layers[0].attention_norm.scale;
    float* pairs = is_mtp ? gathered_.data() : pass_.rows(detail::step_rows::paired);
    const auto [first, last] = pass_.team().share(thread, batch.n_rows());
    for (const batch_sequence& s : batch.sequences) {
      for (int row = (std::max)(first, s.row_begin); row < (std::min)(last, s.row_end); ++row) {
        float* token = pairs + at(row, 2 * width);
        float* state = token + width;
        float* stream = is_mtp ? state : pass_.rows(detail::step_rows::stream) + at(row, width);
        read_state(pass, s.sequence, row, batch.positions[static_cast<std::size_t>(row)], stream);
        (config_.has_embedding ? static_cast<const model_weights&>(weights_) : *target_)
            .embed(batch.tokens[static_cast<std::size_t>(row)], token);
        detail::rms_norm(token, width, token_norm, config_.norm_epsilon, token);
        detail::rms_norm(stream, width, weights_.state_norm.data(), config_.norm_epsilon, state);
        if (config_.norm_before_residual) std::copy_n(state, width, stream);
      }
    }
    if (!is_mtp) return;
    pass_.team().barrier();
    pass_.multiply(thread, weights_.projection, pairs, batch.n_rows(), pass_.rows(detail::step_rows::stream), false,
                   weights_.layers[0].query_key_value.matrix);
  }

  // Writes the state that a row reads: a state that an earlier row has left, or else the target's at the position
  // before; zeros at position 0.
  template <class PassT>
  void read_state(const PassT& pass, int sequence, int row, int position, float* to) const {
    const context_type& context = *pass.contexts[static_cast<std::size_t>(sequence)];
    const std::int32_t drafted = pass.states[static_cast<std::size_t>(row)].reads;
    if (drafted >= 0) {
      std::copy_n(context.states.data() + at(drafted, config_.hidden_size), config_.hidden_size, to);
    } else if (position > 0) {
      std::copy_n(context.features.data() + at(position - 1, config_.hidden_size), config_.hidden_size, to);
    } else {
      std::fill_n(to, config_.hidden_size, 0.0F);
    }
  }

  template <class PassT>
  void keep_state(const PassT& pass, int sequence, int row) const {
    const std::int32_t number = pass.states[static_cast<std::size_t>(row)].writes;
    if (number < 0) return;
    const int width = config_.hidden_size;
    const float* from = pass_.rows(detail::step_rows::stream) + at(row, width);
    float* to = pass.contexts[static_cast<std::size_t>(sequence)]->states.data() + at(number, width);
    if (config_.norm_output) {
      detail::rms_norm(from, width, weights_.final_norm.scale, config_.norm_epsilon, to);
    } else {
      std::copy_n(from, width, to);
    }
  }

  draft_head_config config_;
  draft_head_weights weights_;
  std::shared_ptr<const model_weights> target_;
  int max_positions_;
  detail::transformer_pass pass_;
  int n_reserved_ = most_rows;
  std::vector<float> gathered_;  // [read_rows][states read * state_size]; for an MTP head, [rows][2 * hidden_size]
};

}  // namespace espalier
