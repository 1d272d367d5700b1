// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/model_weights.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "espalier/model/files/tensor_reader.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_steps.hpp"
#include "espalier/model/llama/tensor_names.hpp"

namespace espalier::detail {

// A part of a model, and the layer and the expert that it belongs to, if it belongs to one.
struct part_place {
  model_part part;
  int layer = 0;
  int expert = -1;
};

// Returns the layer of a part, in weights that are laid out as model_weights or block_draft_weights.
template <class WeightsT>
auto& layer_at(WeightsT& weights, part_place place) {
  return weights.layers[static_cast<std::size_t>(place.layer)];
}

// Returns the matrix of a part with its bias; the head for a part that has no matrix of its own.
template <class WeightsT>
auto& linear_at(WeightsT& weights, part_place place) {
  if constexpr (requires { layer_at(weights, place).experts; }) {
    if (place.part == model_part::router) return layer_at(weights, place).router;
    if (place.expert >= 0) {
      auto& expert = layer_at(weights, place).experts[static_cast<std::size_t>(place.expert)];
      return place.part == model_part::gate ? expert.gate : place.part == model_part::up ? expert.up : expert.down;
    }
  }
  switch (place.part) {
    case model_part::query_key_value:
      return layer_at(weights, place).query_key_value;
    case model_part::attention_out:
      return layer_at(weights, place).attention_out;
    case model_part::gate:
      return layer_at(weights, place).gate;
    case model_part::up:
      return layer_at(weights, place).up;
    case model_part::down:
      return layer_at(weights, place).down;
    default:
      break;
  }
  if constexpr (requires { weights.features; }) {
    if (place.part == model_part::features) return weights.features;
    if (place.part == model_part::pending) return weights.pending;
    if (place.part == model_part::query) return layer_at(weights, place).query;
    if (place.part == model_part::key_value) return layer_at(weights, place).key_value;
  }
  if constexpr (requires { layer_at(weights, place).attention_factors; }) {
    if (place.part == model_part::attention_factors) return layer_at(weights, place).attention_factors;
    if (place.part == model_part::mlp_factors) return layer_at(weights, place).mlp_factors;
  }
  return weights.head;
}

// Returns the norm before attention or before the MLP, or that of a draft block's features or pending token; the final
// norm for any other part.
template <class WeightsT>
auto& norm_at(WeightsT& weights, part_place place) {
  if (place.part == model_part::attention_norm) return layer_at(weights, place).attention_norm;
  if (place.part == model_part::mlp_norm) return layer_at(weights, place).mlp_norm;
  if constexpr (requires { weights.features_norm; }) {
    if (place.part == model_part::features_norm) return weights.features_norm;
    if (place.part == model_part::pending_norm) return weights.pending_norm;
  }
  return weights.final_norm;
}

// Returns the scale of a norm, the attention sinks of a layer, or the factors of its convolutions.
template <class WeightsT>
float* scale_at(WeightsT& weights, part_place place) {
  switch (place.part) {
    case model_part::query_norm:
      return layer_at(weights, place).query_norm;
    case model_part::key_norm:
      return layer_at(weights, place).key_norm;
    case model_part::sinks:
      if constexpr (requires { layer_at(weights, place).sinks; }) return layer_at(weights, place).sinks;
      return nullptr;
    case model_part::attention_out_norm:
      return layer_at(weights, place).attention_out_norm;
    case model_part::mlp_out_norm:
      return layer_at(weights, place).mlp_out_norm;
    case model_part::attention_taps:
      if constexpr (requires { layer_at(weights, place).attention_taps; })
        return layer_at(weights, place).attention_taps;
      return nullptr;
    case model_part::mlp_taps:
      if constexpr (requires { layer_at(weights, place).mlp_taps; }) return layer_at(weights, place).mlp_taps;
      return nullptr;
    default:
      return norm_at(weights, place).scale;
  }
}

// Returns the numbers of a part that a recurrent layer has beside its matrices; null for other parts, and in weights
// without such layers.
template <class WeightsT>
float* recurrent_at([[maybe_unused]] WeightsT& weights, [[maybe_unused]] part_place place) {
  if constexpr (requires { layer_at(weights, place).recurrence; }) {
    switch (place.part) {
      case model_part::convolution:
        return layer_at(weights, place).recurrence.convolution;
      case model_part::convolution_bias:
        return layer_at(weights, place).recurrence.convolution_bias;
      case model_part::step_bias:
        return layer_at(weights, place).recurrence.step_bias;
      case model_part::decay:
        return layer_at(weights, place).recurrence.decay;
      case model_part::skip:
        return layer_at(weights, place).recurrence.skip;
      case model_part::gated_norm:
        return layer_at(weights, place).recurrence.norm;
      default:
        break;
    }
  }
  return nullptr;
}

constexpr bool is_stream_norm(model_part part) {
  return part == model_part::attention_norm || part == model_part::mlp_norm || part == model_part::final_norm;
}

// Returns the bias of a matrix or a norm.
template <class WeightsT>
float* bias_at(WeightsT& weights, part_place place) {
  return is_stream_norm(place.part) ? norm_at(weights, place).bias : linear_at(weights, place).bias;
}

// Outputs and inputs of a matrix of the model.
struct matrix_size {
  int outputs = 0, inputs = 0;
};
inline matrix_size size_of(const model_config& c, part_place place) {
  const int intermediate = place.expert >= 0           ? c.mixture.size
                           : c.is_mixture(place.layer) ? c.mixture.shared_size
                                                       : c.intermediate_size;
  switch (place.part) {
    case model_part::query_key_value:
      return {c.is_recurrent(place.layer) ? c.recurrence.projected() : c.projected_size(),
              c.paired_input && place.layer == 0 ? 2 * c.hidden_size : c.hidden_size};
    case model_part::attention_out:
      return {c.hidden_size, c.is_recurrent(place.layer) ? c.recurrence.inner() : c.query_size()};
    case model_part::gate:
    case model_part::up:
      return {intermediate, c.hidden_size};
    case model_part::down:
      return {c.hidden_size, intermediate};
    case model_part::router:
      return {c.mixture.routed_size(), c.hidden_size};
    case model_part::query:
      return {c.query_size(), c.hidden_size};
    case model_part::key_value:
      return {2 * c.kv_size(), c.hidden_size};
    case model_part::pending:
      return {c.hidden_size, c.hidden_size};
    case model_part::attention_factors:
    case model_part::mlp_factors:
      return {c.conv_factors(), c.hidden_size};
    case model_part::embedding:
      return {c.vocab_size, c.hidden_size};
    default:
      return {c.head_size > 0 ? c.head_size : c.vocab_size, c.hidden_size};
  }
}

// Returns whether memory has the rows of some tokens alone of this matrix.
inline bool has_few_rows(const model_config& c, part_place place) {
  return place.part == model_part::head && !c.head_tokens.empty();
}

// Returns the size of a matrix in memory, which may have fewer rows than in the file.
inline matrix_size held_size_of(const model_config& c, part_place place) {
  matrix_size size = size_of(c, place);
  if (has_few_rows(c, place)) size.outputs = c.columns();
  return size;
}

// Returns the number in memory of a row of a matrix in the file; -1: memory does not have it.
inline int held_row_of(const model_config& c, part_place place, int row) {
  if (!has_few_rows(c, place)) return row;
  const auto found = std::lower_bound(c.head_tokens.begin(), c.head_tokens.end(), row);
  return found != c.head_tokens.end() && *found == row ? static_cast<int>(found - c.head_tokens.begin()) : -1;
}

// A reader of the tensors of a model, by the names that each kind of file gives them. It gives them to the object
// `weights`, which has
//   expect_rows(place, first, rows, type)  gets the type in which the file stores rows first, first + 1, ... of a
//                                          matrix
//   set_row(place, row, weights)           gets row `row` of a matrix, a weight_row
//   wants(place, row)                      optional: whether row `row` of a matrix is to be read
//   inputs(place, type)                    optional: which columns of a row set_row gets, whole blocks of the type
//   set_vector(place, values, n)           gets the scale of a norm, or a part of a recurrent layer that is no matrix
//   set_bias(place, first, values, n)      gets the biases of outputs first, first + 1, ..., or of a norm
// Whatever order and form the file has: two rows of queries or keys that are rotated together are given numbers that
// are rotary_dims / 2 apart; a norm is given as its scale, not as the scale minus 1; and the scale of the final norm is
// given already divided by the config's logit_divisor.
template <class WeightsT>
class model_tensors {
 public:
  // With only_check, it reads no tensor and sets nothing, but raises an error for a tensor that the file lacks, or that
  // has no place in the model, and calls expect_rows. So a config that claims too much is refused before memory is
  // taken for it.
  model_tensors(const model_config& config, tensor_source& file, WeightsT& weights, bool only_check)
      : c_(config),
        file_(file),
        names_(names_of(config.layout)),
        tensors_(file, only_check, config.is_gguf() ? "the metadata makes" : "the config makes"),
        weights_(weights),
        only_check_(only_check) {}

  void read() {
    const std::string &begin = c_.tensor_prefix, embedding = begin + names_.embedding, head = begin + names_.head;
    if (c_.has_embedding) linear(embedding, {model_part::embedding}, false);
    if (c_.tied_embeddings) {
      for (const char* end : {".weight", ".weight_scale"})
        tensors_.copy_of(head + end, embedding + end);
      if (!c_.head_tokens.empty()) linear(embedding, {model_part::head}, false);
    } else if (c_.has_head) {
      linear(head, {model_part::head}, false);
    }
    for (int i = 0; i < c_.n_layers; ++i)
      read_layer(begin + names_.layer + (names_.numbered ? std::to_string(i) + "." : ""), i);
    norm(begin + names_.final_norm, {model_part::final_norm}, c_.hidden_size, c_.logit_divisor);
    if (only_check_) tensors_.require_all_asked_for([&](const std::string& name) { return is_idle(name); });
  }

 private:
  // Returns whether this class may leave a tensor unread: it changes no text that the model writes, or another class
  // reads it, or it belongs to another model.
  bool is_idle(const std::string& name) const {
    // Angles of the rotary embedding, which the config gives, too.
    if (name.ends_with(".rotary_emb.inv_freq")) return true;
    if (c_.n_layers == 0 && name.starts_with(c_.tensor_prefix + names_.layer)) return true;
    switch (c_.layout) {
      case model_config::layout_type::gguf:
      case model_config::layout_type::gguf_gpt_oss:
      case model_config::layout_type::gguf_qwen3_next:
      case model_config::layout_type::gguf_qwen3_5:
        for (int i = 0; i < c_.draft_layers; ++i) {
          if (name.starts_with(names_.layer + std::to_string(c_.n_layers + i) + ".")) return true;
        }
        // Divisors of the angles, which are read with the metadata, and angles as above.
        return name == "rope_freqs.weight" || name == "rope_factors_long.weight" ||
               name == "rope_factors_short.weight" || name.ends_with(".attn_rot_embd.weight");
      case model_config::layout_type::gguf_eagle3:
        // Read by draft_head_model, and divisors of the angles.
        return name == "fc.weight" || name == "enc.output_norm.weight" || name.ends_with(".attn_norm_2.weight") ||
               name == "d2t" || name == "rope_freqs.weight";
      case model_config::layout_type::eagle3:
      case model_config::layout_type::eagle3_midlayer:
        // Read by draft_head_model.
        return name.starts_with("fc") || name == "input_norm.weight" || name.ends_with(".hidden_norm.weight") ||
               name == "d2t" || name == "t2d" || name == "mask_hidden";
      case model_config::layout_type::mtp:
        // Read by draft_head_model.
        return name.ends_with(".input_proj.weight") || name.ends_with(".hidden_layernorm.weight") ||
               name.ends_with(".token_layernorm.weight");
      case model_config::layout_type::mtp_beside:
        // Read by draft_head_model, and the target's own tensors.
        return !name.starts_with("mtp.") || name == "mtp.fc.weight" || name.starts_with("mtp.pre_fc_norm_");
      case model_config::layout_type::gpt_neox:
        // The causal mask.
        return name.ends_with(".attention.bias") || name.ends_with(".attention.masked_bias");
      default:
        // A head that drafts, and tensors of the part that sees pictures.
        if (name.starts_with("mtp.")) return true;
        if (c_.layout == model_config::layout_type::qwen3_5_beside_vision) return name.starts_with("model.visual.");
        return !c_.tensor_prefix.empty() &&
               (name.starts_with("vision_tower.") || name.starts_with("multi_modal_projector."));
    }
  }

  void read_layer(const std::string& base, int i) {
    const int width = c_.hidden_size;
    if (c_.input_norms) norm(base + names_.attention_norm, {model_part::attention_norm, i}, width);
    if (c_.is_recurrent(i)) {
      read_recurrence(base, i);
    } else {
      read_attention(base, i);
    }
    if (c_.input_norms) norm(base + names_.mlp_norm, {model_part::mlp_norm, i}, width);
    if (c_.is_mixture(i)) return read_mixture(base, i);
    if (c_.joined_gate) {
      gate_and_up(base + names_.gate_up + ".weight", {model_part::up, i});
    } else {
      if (c_.gated_mlp) linear(base + names_.gate, {model_part::gate, i}, c_.mlp_bias);
      linear(base + names_.up, {model_part::up, i}, c_.mlp_bias);
    }
    linear(base + names_.down, {model_part::down, i}, c_.mlp_bias);
    if (c_.output_norms) norm(base + names_.mlp_out_norm, {model_part::mlp_out_norm, i}, width);
  }

  void read_mixture(const std::string& base, int i) {
    const int experts = c_.mixture.experts;
    matrix(base + names_.router, {model_part::router, i}, experts, 0, in_order);
    if (c_.mixture.biased) bias(base + names_.router + ".bias", {model_part::router, i}, experts);
    if (c_.mixture.shared_size > 0) read_shared_expert(base, i);
    if (names_.expert && !names_.expert_gate) return read_paired_experts(base + names_.expert, i);
    if (names_.expert && file_.find(base + names_.expert + "gate_up_proj"))
      return read_stacked_experts(base + names_.expert, i);
    const auto matrices = [&](const char* name, model_part part) {
      for (int e = 0; e < experts; ++e) {
        const part_place place{part, i, e};
        const int rows = size_of(c_, place).outputs;
        if (names_.expert) {
          matrix(base + names_.expert + std::to_string(e) + "." + name, place, rows, 0, in_order);
        } else {
          matrix(base + name, place, rows, 0, in_order, {e, experts});
        }
      }
      if (c_.mixture.biased) biases_of_experts(base + name + ".bias", i, std::span(&part, 1));
    };
    matrices(names_.expert_gate, model_part::gate);
    matrices(names_.expert_up, model_part::up);
    matrices(names_.expert_down, model_part::down);
  }

  // Reads the matrices of a shared expert, and its row of the router, which is a vector in GGUF files.
  void read_shared_expert(const std::string& base, int i) {
    linear(base + names_.shared_gate, {model_part::gate, i}, false);
    linear(base + names_.shared_up, {model_part::up, i}, false);
    linear(base + names_.shared_down, {model_part::down, i}, false);
    const part_place place{model_part::router, i};
    const std::string name = base + names_.shared_router;
    const tensor_entry* entry = file_.find(name + ".weight");
    if (!entry || entry->shape.size() != 1) return matrix(name, place, 1, c_.mixture.experts, in_order);
    if (only_check_) weights_.expect_rows(place, c_.mixture.experts, 1, weight_type::f32);
    tensors_.vector(name + ".weight", c_.hidden_size, [&](const float* values) {
      weights_.set_row(place, c_.mixture.experts, weight_row::of(values, c_.hidden_size));
    });
  }

  // Reads experts that are in two tensors: one has gate and up of all experts, the other has down.
  void read_stacked_experts(const std::string& base, int i) {
    for (int e = 0; e < c_.mixture.experts; ++e) {
      const stack_place in_stack{e, c_.mixture.experts};
      gate_and_up(base + "gate_up_proj", {model_part::up, i, e}, in_stack);
      const part_place down{model_part::down, i, e};
      const auto row_of_down = [&](int row) { return matrix_row{down, row}; };
      rows_of(base + "down_proj", down, size_of(c_, down).outputs, row_of_down, in_stack);
    }
  }

  // Reads the experts of gpt-oss: one matrix has the rows of gate and up in turn, and each tensor all experts.
  void read_paired_experts(const std::string& base, int i) {
    const auto matrices = [&](const std::string& name, std::span<const model_part> parts) {
      const int n = static_cast<int>(parts.size());
      const matrix_size of_one = size_of(c_, {parts.front(), i, 0});
      for (int e = 0; e < c_.mixture.experts; ++e) {
        const auto set = [&](int row, const weight_row& weights) {
          const part_place place{parts[static_cast<std::size_t>(row % n)], i, e};
          if (!is_wanted(place, row / n)) return;
          const column_range part = inputs_of(place, weights.type);
          const std::size_t begin = row_bytes(weights.type, part.begin), end = row_bytes(weights.type, part.end);
          weights_.set_row(place, row / n, {weights.type, weights.bytes.subspan(begin, end - begin), part.size()});
        };
        const stack_place in_stack{e, c_.mixture.experts};
        const weight_type type = c_.layout == model_config::layout_type::gpt_oss_mxfp4
                                     ? tensors_.mxfp4_matrix(name, n * of_one.outputs, of_one.inputs, set, in_stack)
                                     : tensors_.transposed(name, n * of_one.outputs, of_one.inputs, set, in_stack);
        for (const model_part part : parts) {
          if (only_check_) weights_.expect_rows({part, i, e}, 0, of_one.outputs, type);
        }
      }
      biases_of_experts(name + "_bias", i, parts);
    };
    constexpr model_part gate_and_up[] = {model_part::gate, model_part::up}, down[] = {model_part::down};
    matrices(base + "gate_up_proj", gate_and_up);
    matrices(base + "down_proj", down);
  }

  // Reads the biases of all experts of a layer, [experts][outputs], the outputs of these parts in turn.
  void biases_of_experts(const std::string& name, int i, std::span<const model_part> parts) {
    const auto n = static_cast<int>(parts.size()), outputs = size_of(c_, {parts.front(), i, 0}).outputs;
    const int experts = c_.mixture.experts;
    const auto extent = [](int size) { return static_cast<std::uint64_t>(size); };
    tensors_.numbers(name, {extent(experts), extent(n * outputs)}, [&](const float* values) {
      values_.resize(static_cast<std::size_t>(outputs));
      for (int at = 0; at < experts * n; ++at) {
        const float* from = values + static_cast<std::ptrdiff_t>(at / n) * n * outputs + at % n;
        for (int o = 0; o < outputs; ++o)
          values_[static_cast<std::size_t>(o)] = from[static_cast<std::ptrdiff_t>(o) * n];
        weights_.set_bias({parts[static_cast<std::size_t>(at % n)], i, at / n}, 0, values_.data(), outputs);
      }
    });
  }

  static int in_order(int row) { return row; }

  void read_attention(const std::string& base, int i) {
    const int width = c_.hidden_size;
    read_projections(base, {model_part::query_key_value, i});
    if (c_.query_key_norm) {
      norm(base + names_.query_norm, {model_part::query_norm, i}, c_.query_norm_size());
      norm(base + names_.key_norm, {model_part::key_norm, i}, c_.key_norm_size());
    }
    if (c_.attention_sinks) {
      tensors_.vector(base + names_.sinks, c_.n_heads, [&](const float* values) {
        weights_.set_vector({model_part::sinks, i}, values, c_.n_heads);
      });
    }
    linear(base + names_.attention_out, {model_part::attention_out, i}, c_.attention_out_bias);
    if (c_.output_norms) norm(base + names_.attention_out_norm, {model_part::attention_out_norm, i}, width);
  }

  void read_recurrence(const std::string& base, int i) {
    const recurrent_block_shape& r = c_.recurrence;
    const recurrent_names& names = names_.recurrent;
    const int channels = r.convolved(), taps = r.taps;
    if (r.is_delta()) {
      read_delta_projection(base, {model_part::query_key_value, i});
    } else {
      linear(base + names.in, {model_part::query_key_value, i}, r.projection_bias);
    }
    linear(base + names.out, {model_part::attention_out, i}, r.projection_bias);
    std::vector<std::uint64_t> shape{static_cast<std::uint64_t>(channels), static_cast<std::uint64_t>(taps)};
    if (!c_.is_gguf()) shape.insert(shape.begin() + 1, 1);
    tensors_.numbers(base + names.convolution + ".weight", shape, [&](const float* values) {
      values_.resize(static_cast<std::size_t>(channels * taps));
      for (int at = 0; at < channels * taps; ++at)
        values_[static_cast<std::size_t>(at % taps * channels + channel_of(at / taps))] = values[at];
      weights_.set_vector({model_part::convolution, i}, values_.data(), channels * taps);
    });
    const auto vector = [&](const std::string& name, model_part part, int n) {
      tensors_.vector(base + name, n, [&](const float* values) { weights_.set_vector({part, i}, values, n); });
    };
    if (r.convolution_bias) vector(names.convolution + std::string(".bias"), model_part::convolution_bias, channels);
    vector(names.step_bias, model_part::step_bias, r.heads);
    tensors_.vector(base + names.decay, r.heads, [&](const float* values) {
      values_.assign(values, values + r.heads);
      for (float& value : values_)
        value = c_.is_gguf() ? value : -std::exp(value);
      weights_.set_vector({model_part::decay, i}, values_.data(), r.heads);
    });
    if (names.skip) vector(names.skip, model_part::skip, r.heads);
    vector(names.norm + std::string(".weight"), model_part::gated_norm, r.norm_size());
  }

  // Returns the number of a convolved channel: files of delta networks have queries, keys and values, in this order.
  int channel_of(int in_file) const {
    const recurrent_block_shape& r = c_.recurrence;
    if (!r.is_delta()) return in_file;
    const int each = r.groups * r.state;
    return in_file < each       ? r.inner() + each + in_file
           : in_file < 2 * each ? r.inner() + in_file - each
                                : in_file - 2 * each;
  }

  // Reads the projection before a delta network: gates, convolved channels, and for each head alpha and beta.
  void read_delta_projection(const std::string& base, part_place place) {
    const recurrent_block_shape& r = c_.recurrence;
    const recurrent_names& names = names_.recurrent;
    const int gates = r.inner(), channels = r.convolved(), state = r.state, alpha = gates + channels;
    const int group_heads = r.heads / r.groups, values = group_heads * r.head_dim;
    if (names.grouped) {
      const int each = 2 * (state + values);
      matrix(base + names.grouped, place, gates + channels, 0, [&](int row) {
        const int group = row / each, at = row % each;
        if (at >= each - values) return group * values + at - (each - values);
        const int kind = (std::min)(at / state, 2);
        return gates + channel_of(kind < 2 ? (kind * r.groups + group) * state + at % state
                                           : 2 * r.groups * state + group * values + at - 2 * state);
      });
    } else {
      matrix(base + names.channels, place, channels, 0, [&](int row) { return gates + channel_of(row); });
      matrix(base + names.gates, place, gates, 0, in_order);
    }
    if (names.beta_alpha) {
      matrix(base + names.beta_alpha, place, 2 * r.heads, 0, [&](int row) {
        const int group = row / (2 * group_heads), at = row % (2 * group_heads);
        const bool is_beta = at < group_heads;
        return alpha + (is_beta ? r.heads : 0) + group * group_heads + at % group_heads;
      });
    } else {
      matrix(base + names.alpha, place, r.heads, alpha, in_order);
      matrix(base + names.beta, place, r.heads, alpha + r.heads, in_order);
    }
  }

  // Reads the projections to queries, keys and values: outputs in that order, each head by head.
  void read_projections(const std::string& base, part_place place) {
    const int q = c_.query_size(), kv = c_.kv_size(), dim = c_.head_dim;
    // For rows of queries and keys. If the file has them in pairs, rows 2 i and 2 i + 1 of a head are rotated together.
    const auto turned = [dim, rotated = c_.paired_rotary ? c_.rotary_dims : 0](int row) {
      const int at = row % dim;
      return at < rotated ? row - at + at % 2 * (rotated / 2) + at / 2 : row;
    };
    // The file has query, key and value of one head together.
    const auto by_heads = [q, dim](int row) { return row / dim % 3 * q + row / (3 * dim) * dim + row % dim; };
    if (c_.layout == model_config::layout_type::gpt_neox) {
      projection(base + names_.query_key_value, place, 0, q + 2 * kv, by_heads);
    } else if (c_.joined_projections) {
      projection(base + names_.query_key_value, place, 0, q + 2 * kv,
                 [&](int row) { return row < q + kv ? turned(row) : row; });
    } else {
      if (c_.attention_gate) {
        queries_and_gates(base + names_.query, place);
      } else {
        projection(base + names_.query, place, 0, q, turned);
      }
      projection(base + names_.key, place, q, kv, turned);
      projection(base + names_.value, place, q + kv, kv, in_order);
    }
  }

  // Reads the projection to queries and gates of attention: the tensor has the query of each head, then its gate.
  void queries_and_gates(const std::string& name, part_place place) {
    const int q = c_.query_size(), kv = c_.kv_size(), dim = c_.head_dim;
    const auto order = [q, dim](int row) { return row / dim % 2 * q + row / (2 * dim) * dim + row % dim; };
    matrix(name, place, 2 * q, 0, [&](int row) { return order(row) < q ? order(row) : order(row) + 2 * kv; });
    if (!c_.query_bias) return;
    tensors_.vector(name + ".bias", 2 * q, [&](const float* values) {
      values_.resize(static_cast<std::size_t>(2 * q));
      for (int row = 0; row < 2 * q; ++row)
        values_[static_cast<std::size_t>(order(row))] = values[row];
      weights_.set_bias(place, 0, values_.data(), q);
      weights_.set_bias(place, q + 2 * kv, values_.data() + q, q);
    });
  }

  // Reads a projection: row r of the tensor is row first + order(r) of the matrix.
  template <class OrderT>
  void projection(const std::string& name, part_place place, int first, int rows, const OrderT& order) {
    matrix(name, place, rows, first, order);
    if (!c_.query_bias) return;
    tensors_.vector(name + ".bias", rows, [&](const float* values) {
      values_.resize(static_cast<std::size_t>(rows));
      for (int row = 0; row < rows; ++row)
        values_[static_cast<std::size_t>(order(row))] = values[row];
      weights_.set_bias(place, first, values_.data(), rows);
    });
  }

  // A row of a matrix of the model.
  struct matrix_row {
    part_place place;
    int row;
  };

  // Reads gate and up from one tensor, or one of a stack, which has the rows of gate first. `up` is the place of up.
  void gate_and_up(const std::string& name, part_place up, stack_place in_stack = {}) {
    part_place gate = up;
    gate.part = model_part::gate;
    const int each = size_of(c_, up).outputs;
    rows_of(
        name, up, 2 * each,
        [&](int row) {
          return row < each ? matrix_row{gate, row} : matrix_row{up, row - each};
        },
        in_stack);
  }

  // Reads a matrix, or one of a stack: row r in the file is row first + order(r) of the matrix.
  template <class OrderT>
  void matrix(const std::string& name, part_place place, int rows, int first, const OrderT& order,
              stack_place in_stack = {}) {
    rows_of(
        name + ".weight", place, rows,
        [&](int row) {
          return matrix_row{place, first + order(row)};
        },
        in_stack);
  }

  // Returns whether the receiver takes a row of a matrix.
  bool is_wanted([[maybe_unused]] part_place place, [[maybe_unused]] int row) const {
    if constexpr (requires { weights_.wants(place, row); }) return weights_.wants(place, row);
    return true;
  }
  // Returns which inputs the receiver takes of the rows of a matrix.
  column_range inputs_of(part_place place, [[maybe_unused]] weight_type type) const {
    if constexpr (requires { weights_.inputs(place, type); }) return weights_.inputs(place, type);
    return {0, size_of(c_, place).inputs};
  }

  // Reads a tensor, row r of which is the row target(r) of the model. All matrices that it holds have as many inputs as
  // that at `place`.
  template <class TargetT>
  void rows_of(const std::string& name, part_place place, int rows, const TargetT& target, stack_place in_stack = {}) {
    const int columns = size_of(c_, place).inputs;
    const auto wanted = [&](int row) {
      const matrix_row to = target(row);
      return is_wanted(to.place, to.row);
    };
    const auto part = [&](weight_type type) { return inputs_of(place, type); };
    const auto visit = [&](int row, const weight_row& weights) {
      const matrix_row to = target(row);
      weights_.set_row(to.place, to.row, weights);
    };
    const weight_type type = tensors_.matrix(name, rows, columns, visit, wanted, part, in_stack);
    for (int row = 0; only_check_ && row < rows; ++row)
      weights_.expect_rows(target(row).place, target(row).row, 1, type);
  }

  void linear(const std::string& name, part_place place, bool has_bias) {
    const int rows = size_of(c_, place).outputs;
    matrix(name, place, rows, 0, in_order);
    if (has_bias) bias(name + ".bias", place, rows);
  }

  void bias(const std::string& name, part_place place, int n) {
    tensors_.vector(name, n, [&](const float* values) { weights_.set_bias(place, 0, values, n); });
  }

  // Reads a norm, and divides its scale by `divisor`.
  void norm(const std::string& name, part_place place, int n, float divisor = 1.0F) {
    tensors_.vector(name + ".weight", n, [&](const float* values) {
      values_.assign(values, values + n);
      for (float& scale : values_)
        scale = (c_.norms_less_one ? scale + 1.0F : scale) / divisor;
      weights_.set_vector(place, values_.data(), n);
    });
    if (c_.layer_norm) bias(name + ".bias", place, n);
  }

  const model_config& c_;
  tensor_source& file_;
  const tensor_names& names_;
  tensor_reader tensors_;
  WeightsT& weights_;
  bool only_check_;
  std::vector<float> values_;
};

}  // namespace espalier::detail
