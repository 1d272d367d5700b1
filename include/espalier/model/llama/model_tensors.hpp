// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <string>

#include "espalier/model/files/tensor_reader.hpp"
#include "espalier/model/llama/model_config.hpp"

namespace espalier::detail {

// What of a transformer has weights. Matrices are query_key_value (outputs in that order), attention_out, gate, up,
// down, head and embedding, which is the head, too, where the config ties them.
enum class model_part {
  embedding,
  attention_norm,
  query_key_value,
  query_norm,
  key_norm,
  attention_out,
  mlp_norm,
  gate,
  up,
  down,
  final_norm,
  head
};

// A part of a layer; layer 0 where it belongs to none.
struct part_place {
  model_part part;
  int layer = 0;
};

// Where weights that are laid out as model_weights is hold a part.
template <class WeightsT>
auto& layer_at(WeightsT& weights, part_place place) {
  return weights.layers[static_cast<std::size_t>(place.layer)];
}

template <class WeightsT>
auto& linear_at(WeightsT& weights, part_place place) {
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
      return weights.head;
  }
}

template <class WeightsT>
float* scale_at(WeightsT& weights, part_place place) {
  switch (place.part) {
    case model_part::attention_norm:
      return layer_at(weights, place).attention_norm.scale;
    case model_part::mlp_norm:
      return layer_at(weights, place).mlp_norm.scale;
    case model_part::query_norm:
      return layer_at(weights, place).query_norm;
    case model_part::key_norm:
      return layer_at(weights, place).key_norm;
    default:
      return weights.final_norm.scale;
  }
}

template <class WeightsT>
float* bias_at(WeightsT& weights, part_place place) {
  switch (place.part) {
    case model_part::attention_norm:
      return layer_at(weights, place).attention_norm.bias;
    case model_part::mlp_norm:
      return layer_at(weights, place).mlp_norm.bias;
    case model_part::final_norm:
      return weights.final_norm.bias;
    default:
      return linear_at(weights, place).bias;
  }
}

// Reads the tensors of a model, by the names that each family gives them, into whatever holds its weights:
//   expect_rows(place, first, rows, type)  how the file stores rows first, first + 1, ... of a matrix
//   set_row(place, row, weights)           row `row` of a matrix, a weight_row; those of one come in ascending runs
//   set_vector(place, values, n)           the scale of a norm
//   set_bias(place, first, values, n)      biases of outputs first, first + 1, ..., or of a norm
template <class WeightsT>
class model_tensors {
 public:
  // Where it only checks, it reads no tensor and sets nothing, but raises what the file lacks, and says what to expect:
  // a config that claims too much is refused before memory is taken for it.
  model_tensors(const model_config& config, safetensors_file& file, WeightsT& weights, bool only_check)
      : c_(config), tensors_(file, only_check), weights_(weights), only_check_(only_check) {}

  void read() {
    if (c_.family == model_config::family_type::llama) {
      read_llama();
    } else {
      read_gpt_neox();
    }
  }

 private:
  void read_llama() {
    matrix("model.embed_tokens.weight", {model_part::embedding}, 0, c_.vocab_size, c_.hidden_size);
    if (!c_.tied_embeddings) linear("lm_head", {model_part::head}, 0, c_.vocab_size, c_.hidden_size, false);
    for (int i = 0; i < c_.n_layers; ++i) {
      const std::string base = "model.layers." + std::to_string(i) + ".";
      const std::string attention = base + "self_attn.", mlp = base + "mlp.";
      const part_place qkv{model_part::query_key_value, i};
      const int q = c_.query_size(), kv = c_.kv_size();
      vector(base + "input_layernorm.weight", {model_part::attention_norm, i}, c_.hidden_size);
      linear(attention + "q_proj", qkv, 0, q, c_.hidden_size, c_.query_bias);
      linear(attention + "k_proj", qkv, q, kv, c_.hidden_size, c_.query_bias);
      linear(attention + "v_proj", qkv, q + kv, kv, c_.hidden_size, c_.query_bias);
      if (c_.query_key_norm) {
        vector(attention + "q_norm.weight", {model_part::query_norm, i}, c_.head_dim);
        vector(attention + "k_norm.weight", {model_part::key_norm, i}, c_.head_dim);
      }
      linear(attention + "o_proj", {model_part::attention_out, i}, 0, c_.hidden_size, q, c_.attention_out_bias);
      vector(base + "post_attention_layernorm.weight", {model_part::mlp_norm, i}, c_.hidden_size);
      linear(mlp + "gate_proj", {model_part::gate, i}, 0, c_.intermediate_size, c_.hidden_size, c_.mlp_bias);
      linear(mlp + "up_proj", {model_part::up, i}, 0, c_.intermediate_size, c_.hidden_size, c_.mlp_bias);
      linear(mlp + "down_proj", {model_part::down, i}, 0, c_.hidden_size, c_.intermediate_size, c_.mlp_bias);
    }
    vector("model.norm.weight", {model_part::final_norm}, c_.hidden_size);
  }

  void read_gpt_neox() {
    matrix("gpt_neox.embed_in.weight", {model_part::embedding}, 0, c_.vocab_size, c_.hidden_size);
    if (!c_.tied_embeddings) linear("embed_out", {model_part::head}, 0, c_.vocab_size, c_.hidden_size, false);
    for (int i = 0; i < c_.n_layers; ++i) {
      const std::string base = "gpt_neox.layers." + std::to_string(i) + ".", mlp = base + "mlp.";
      norm(base + "input_layernorm", {model_part::attention_norm, i});
      interleaved(base + "attention.query_key_value", {model_part::query_key_value, i});
      linear(base + "attention.dense", {model_part::attention_out, i}, 0, c_.hidden_size, c_.query_size(),
             c_.attention_out_bias);
      norm(base + "post_attention_layernorm", {model_part::mlp_norm, i});
      linear(mlp + "dense_h_to_4h", {model_part::up, i}, 0, c_.intermediate_size, c_.hidden_size, c_.mlp_bias);
      linear(mlp + "dense_4h_to_h", {model_part::down, i}, 0, c_.hidden_size, c_.intermediate_size, c_.mlp_bias);
    }
    norm("gpt_neox.final_layer_norm", {model_part::final_norm});
  }

  void matrix(const std::string& name, part_place place, int first, int rows, int columns) {
    read_rows(name, place, first, rows, columns, [&](int row) { return first + row; });
  }

  // Row `row` of the tensor is row place_of(row) of the matrix.
  template <class PlaceT>
  void read_rows(const std::string& name, part_place place, int first, int rows, int columns, PlaceT place_of) {
    const weight_type type = tensors_.matrix(name, rows, columns, [&](int row, const weight_row& weights) {
      weights_.set_row(place, place_of(row), weights);
    });
    if (only_check_) weights_.expect_rows(place, first, rows, type);
  }

  // Outputs first, first + 1, ... of a matrix and their biases.
  void linear(const std::string& name, part_place place, int first, int rows, int columns, bool has_bias) {
    matrix(name + ".weight", place, first, rows, columns);
    if (has_bias) bias(name + ".bias", place, first, rows);
  }

  void vector(const std::string& name, part_place place, int n) {
    tensors_.vector(name, n, [&](const float* values) { weights_.set_vector(place, values, n); });
  }

  void bias(const std::string& name, part_place place, int first, int n) {
    tensors_.vector(name, n, [&](const float* values) { weights_.set_bias(place, first, values, n); });
  }

  void norm(const std::string& name, part_place place) {
    vector(name + ".weight", place, c_.hidden_size);
    bias(name + ".bias", place, 0, c_.hidden_size);
  }

  // GPT-NeoX keeps query, key and value of one head together; here all queries come first, then keys, then values.
  void interleaved(const std::string& name, part_place place) {
    const int n = c_.query_size() + 2 * c_.kv_size();
    const auto row_of = [&](int row) {
      const int of_head = row / (3 * c_.head_dim), which = row / c_.head_dim % 3;
      return which * c_.query_size() + of_head * c_.head_dim + row % c_.head_dim;
    };
    read_rows(name + ".weight", place, 0, n, c_.hidden_size, row_of);
    if (!c_.query_bias) return;
    tensors_.vector(name + ".bias", n, [&](const float* values) {
      for (int row = 0; row < n; row += c_.head_dim)
        weights_.set_bias(place, row_of(row), values + row, c_.head_dim);
    });
  }

  const model_config& c_;
  tensor_reader tensors_;
  WeightsT& weights_;
  bool only_check_;
};

}  // namespace espalier::detail
