// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/model_weights.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "espalier/model/llama/model_config.hpp"

namespace espalier::detail {

// A part of a transformer that has weights. Matrices are query_key_value (outputs in that order, then gates),
// attention_out, gate, up, down, head and embedding, which is also the head if the config ties them. In a recurrent
// layer query_key_value is the projection before the recurrence, and attention_out the projection after it. In a layer
// with a mixture of experts each expert has gate, up and down, and router gives a number for each expert; the layer's
// own gate, up and down are those of the shared expert. A block draft has query and key_value in place of
// query_key_value, and two more matrices, features and pending.
enum class model_part : std::uint8_t {
  embedding,
  attention_norm,
  query_key_value,
  query_norm,
  key_norm,
  sinks,
  attention_out,
  attention_out_norm,
  mlp_norm,
  gate,
  up,
  down,
  router,
  mlp_out_norm,
  convolution,
  convolution_bias,
  step_bias,
  decay,
  skip,
  gated_norm,
  final_norm,
  head,
  // parts of a block draft alone
  features,
  features_norm,
  pending,
  pending_norm,
  masked,
  query,
  key_value,          // keys first
  attention_factors,  // what a row gives for the convolutions before and after attention
  attention_taps,     // the factors of these convolutions that are the weights' own, [2][conv_taps][hidden_size]
  mlp_factors,
  mlp_taps,
  markov_tokens,  // the embeddings of a Markov head
  markov_gate,    // its gates: a matrix over embeddings and a row's state
  markov_gate_bias,
  markov_out,
  selector_before,  // the numbers of the token before, of a selector
  selector_state,   // its matrix over a row's state
  selector_after,   // the numbers of each candidate
  refiner_tokens,   // the embeddings of a refiner
  refiner_state,    // its matrix over a row's state
  refiner_mean,     // its matrix over the mean of the states
  refiner_in,       // the matrix over the products of these two and an embedding
  refiner_mixer,
  refiner_gate,
  refiner_up,
  refiner_down,
  refiner_out,
  unused  // a tensor that has a place in the file, but is not computed
};

enum class step_kind : std::uint8_t {
  embed,       // writes the embeddings of the tokens to the stream
  normalise,   // writes each row of `from`, normalised or as it is, to `to`
  multiply,    // writes the product of a matrix with the rows of `from`, and its bias, to `to`, or adds them to it
  norm_heads,  // normalises the queries of each row of `to`, all heads as one, and its keys
  rotate,      // normalises and rotates the heads of queries and keys in `from`; keys and values go into the cache
  attend,      // writes to `to` the result of attention for the queries in `from`, over the cache
  gate,        // multiplies each number of `to` by the sigmoid of its gate, which is in `from` from `column` on
  recur,       // writes to `to` the result of a recurrent block for `from`
  activate,    // writes the activation of `from` to `to`; on the host it applies the activation to `to` in place, and
               // multiplies `to` by `from` if `gated`
  dispatch,    // adds to each row of `to` what the experts that its row of `routed` chooses make of its row of `from`
  add_norm,    // adds each row of `from`, normalised, to the row of `to`
  add_scaled,  // adds each row of `from`, times `factor`, to the row of `to`
  convolve,    // turns each row of `from` into its convolution over the rows of its sequence, by `factors`; adds it to
               // the row of `to` if `adds`, and else leaves it in `from`
  keep,        // copies `from` to the hidden states that the caller may read after the pass
  cap          // turns each number x of `to` into limit * tanh(x / limit)
};

// The arrays whose rows pass from step to step. They have a row for each row of the batch; logits have one for each
// output.
enum class step_rows : std::uint8_t {
  stream,      // [hidden_size] the residual stream
  normed,      // [hidden_size]
  paired,      // [2 hidden_size] input of the first layer's attention if config.paired_input
  mlp_normed,  // [hidden_size] the stream normalised for the MLP, if attention and MLP read the same stream
  projected,   // [projected_size], or [recurrence.projected()] in a recurrent layer
  factors,     // [conv_factors()] what the row gives for the convolutions around attention or the MLP
  mixed,       // [query_size], or [recurrence.inner()] in a recurrent layer
  widened,     // [2][intermediate_size] products of gate and up; [intermediate_size] product of up without a gate. On
               // the host [intermediate_size] product of up, only with a gate: the other product is in `activated`
  activated,   // [intermediate_size]; in a layer with a shared expert [mixture.shared_size], and so is `widened`
  routed,      // [mixture.routed_size()] what the router gives
  logits       // [vocab_size]
};

enum class activation_kind : std::uint8_t { gelu, silu_gate, gelu_tanh_gate };

// One step of a pass through a transformer. A field that the kind of step does not read keeps its default.
struct model_step {
  step_kind kind = step_kind::normalise;
  step_rows from = step_rows::stream;
  step_rows to = step_rows::stream;
  model_part part = model_part::attention_norm;  // the matrix or norm; `up` stands for gate and up if `gated`
  bool adds = false;                             // multiply: adds the product to the numbers in `to`
  bool gated = false;                            // multiply and activate: gate and up, not up alone
  bool shared = false;           // activate: multiplies the result by the sigmoid of the last number of the row of
                                 // `routed`, the gate of a shared expert
  bool outputs_only = false;     // a row for each output: normalise writes row batch.outputs[i], normalised, to row i
  bool as_is = false;            // normalise: the rows are copied without a norm
  bool local_rotary = false;     // rotate: the base is model_config::local_rope_theta
  bool unrotated = false;        // rotate: no dimension is rotated
  activation_kind activation{};  // activate
  std::int32_t layer = -1;       // layer that the step belongs to; -1: none
  std::int32_t cache_layer = 0;  // rotate, attend: number of the layer among those with attention; recur: among the
                                 // recurrent ones
  std::int32_t column = 0;       // multiply: first column of `to` that is written; gate: column of the first gate
  std::int32_t next = 0;         // number of the next step with a matrix, whose weights may be fetched meanwhile
  std::int32_t window = 0;       // attend: tokens that a row sees, itself included; 0: all
  float limit = 0.0F;            // attend, cap: scores or logits stay within it; 0: no limit
  float factor = 1.0F;           // add_scaled
};
static_assert(std::is_trivially_copyable_v<model_step>);

// The steps of a pass, in the order in which they are made: the embedding, layer after layer, the final norm, the head,
// and the cap of logits, if there is one.
class model_steps {
 public:
  model_steps() = default;

  // Lists the steps of one pass of a model. They keep the stream after each of `hidden_layers`. With two_matrices,
  // query and key_value are two matrices, and two products fill `projected`.
  explicit model_steps(const model_config& config, std::span<const int> hidden_layers = {}, bool two_matrices = false) {
    add(step_kind::embed, step_rows::stream, step_rows::stream, model_part::embedding, -1);
    for (int i = 0, n_recurrent = 0; i < config.n_layers; ++i) {
      add_layer(config, i, config.is_recurrent(i) ? n_recurrent : i - n_recurrent, two_matrices);
      n_recurrent += config.is_recurrent(i) ? 1 : 0;
      if (std::find(hidden_layers.begin(), hidden_layers.end(), i) != hidden_layers.end())
        add(step_kind::keep, step_rows::stream, step_rows::stream, {}, i);
    }
    add(step_kind::normalise, step_rows::stream, step_rows::normed, model_part::final_norm, -1).outputs_only = true;
    add(step_kind::multiply, step_rows::normed, step_rows::logits, model_part::head, -1).outputs_only = true;
    if (config.logit_cap > 0.0F) {
      model_step& cap = add(step_kind::cap, step_rows::logits, step_rows::logits, {}, -1);
      cap.outputs_only = true, cap.limit = config.logit_cap;
    }
    find_next();
  }

  std::span<const model_step> all() const { return steps_; }
  const model_step& operator[](std::int32_t i) const { return steps_[static_cast<std::size_t>(i)]; }
  std::int32_t size() const { return static_cast<std::int32_t>(steps_.size()); }

  // Returns the steps of one layer; for -1, those before the first layer.
  std::span<const model_step> of_layer(int layer) const {
    std::size_t begin = 0;
    while (begin < steps_.size() && steps_[begin].layer != layer)
      ++begin;
    std::size_t end = begin;
    while (end < steps_.size() && steps_[end].layer == layer)
      ++end;
    return std::span(steps_).subspan(begin, end - begin);
  }

 private:
  model_step& add(step_kind kind, step_rows from, step_rows to, model_part part, int layer) {
    return steps_.emplace_back(model_step{.kind = kind, .from = from, .to = to, .part = part, .layer = layer});
  }

  // Adds the attention or the recurrence of a layer, and its MLP.
  void add_layer(const model_config& config, int layer, int cache_layer, bool two_matrices) {
    using enum step_rows;
    const bool parallel = config.parallel_residual;
    if (parallel) add(step_kind::normalise, stream, mlp_normed, model_part::mlp_norm, layer);
    const bool paired_input = config.paired_input && layer == 0;
    if (!paired_input)
      add(step_kind::normalise, stream, normed, model_part::attention_norm, layer).as_is = !config.input_norms;
    if (config.conv_taps > 0) {
      add(step_kind::multiply, normed, factors, model_part::attention_factors, layer);
      add(step_kind::convolve, normed, normed, model_part::attention_taps, layer);
    }
    add(step_kind::multiply, paired_input ? paired : normed, projected,
        two_matrices ? model_part::query : model_part::query_key_value, layer);
    if (two_matrices)
      add(step_kind::multiply, normed, projected, model_part::key_value, layer).column = config.query_size();
    if (config.is_recurrent(layer)) {
      add(step_kind::recur, projected, mixed, {}, layer).cache_layer = cache_layer;
    } else {
      if (config.whole_query_key_norm) add(step_kind::norm_heads, projected, projected, {}, layer);
      model_step& rotate = add(step_kind::rotate, projected, projected, {}, layer);
      rotate.cache_layer = cache_layer;
      rotate.unrotated = config.is_unrotated(layer);
      rotate.local_rotary = config.local_rope_theta > 0.0 && config.is_windowed(layer);
      model_step& attend = add(step_kind::attend, projected, mixed, {}, layer);
      attend.cache_layer = cache_layer;
      attend.window = config.window_of(layer);
      attend.limit = config.attention_cap;
      if (config.attention_gate)
        add(step_kind::gate, projected, mixed, {}, layer).column = config.query_size() + 2 * config.kv_size();
    }
    add_back(config, mixed, model_part::attention_out, model_part::attention_out_norm, layer);
    if (!parallel) add(step_kind::normalise, stream, normed, model_part::mlp_norm, layer).as_is = !config.input_norms;
    if (config.conv_taps > 0) {
      add(step_kind::multiply, normed, factors, model_part::mlp_factors, layer);
      add(step_kind::convolve, normed, normed, model_part::mlp_taps, layer);
    }
    if (config.is_mixture(layer)) {
      add(step_kind::multiply, normed, routed, model_part::router, layer);
      add(step_kind::dispatch, normed, stream, {}, layer);
      if (config.mixture.shared_size == 0) return;
    }
    add(step_kind::multiply, parallel ? mlp_normed : normed, widened, model_part::up, layer).gated = config.gated_mlp;
    model_step& activate = add(step_kind::activate, widened, activated, {}, layer);
    activate.gated = config.gated_mlp;
    activate.shared = config.is_mixture(layer);
    activate.activation = config.gelu_gate ? activation_kind::gelu_tanh_gate : activation_kind::silu_gate;
    if (!config.gated_mlp) activate.activation = activation_kind::gelu;
    add_back(config, activated, model_part::down, model_part::mlp_out_norm, layer);
  }

  // Adds a product whose result is added to the stream: as it is, normalised, convolved, or times the config's
  // residual_scale.
  void add_back(const model_config& config, step_rows from, model_part part, model_part norm, int layer) {
    const bool adds = config.adds_products();
    add(step_kind::multiply, from, adds ? step_rows::stream : step_rows::normed, part, layer).adds = adds;
    if (adds) return;
    if (config.conv_taps > 0) {
      const model_part taps = part == model_part::down ? model_part::mlp_taps : model_part::attention_taps;
      add(step_kind::convolve, step_rows::normed, step_rows::stream, taps, layer).adds = true;
    } else if (config.output_norms) {
      add(step_kind::add_norm, step_rows::normed, step_rows::stream, norm, layer);
    } else {
      add(step_kind::add_scaled, step_rows::normed, step_rows::stream, {}, layer).factor = config.residual_scale;
    }
  }

  // Sets `next` of each step. From the last step with a matrix on, it is the first step with a matrix.
  void find_next() {
    std::int32_t next = -1;
    for (int round = 0; round < 2; ++round) {
      for (std::int32_t i = size() - 1; i >= 0; --i) {
        model_step& step = steps_[static_cast<std::size_t>(i)];
        step.next = next;
        if (step.kind == step_kind::multiply) next = i;
      }
    }
  }

  std::vector<model_step> steps_;
};

}  // namespace espalier::detail
