// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "espalier/backend/llama/matrix_product.hpp"
#include "espalier/backend/llama/model_config.hpp"
#include "espalier/backend/llama/safetensors_file.hpp"
#include "espalier/backend/llama/tensor_reader.hpp"
#include "espalier/core/float_block.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! The weights of a transformer in F32, in the layout that their product wants, all in one block of memory.
//!
//! Query, key and value projections are one matrix, rows in that order. A tied embedding is held once, as the output
//! projection. What a model does not have is null or has 0 outputs.
//!
//! Complexity  load: peak memory is the weights as held and a buffer of 128 KiB or one row
//! Errors      model_error for a tensor that is missing or has another shape or dtype than the config asks for
template <MatrixProduct MatrixT>
struct model_weights {
  //! Scale and, for LayerNorm, bias: [hidden_size] each.
  struct norm_type {
    float* scale = nullptr;
    float* bias = nullptr;
  };
  //! y = W x + bias; bias [outputs] or null.
  struct linear_type {
    MatrixT matrix;
    float* bias = nullptr;
  };
  struct layer_type {
    norm_type attention_norm, mlp_norm;
    float* query_norm = nullptr;  //!< [head_dim]
    float* key_norm = nullptr;    //!< [head_dim]
    linear_type query_key_value, attention_out, gate, up, down;
  };

  detail::float_block block;
  float* embedding = nullptr;  //!< [vocab_size][hidden_size]; null where tied
  std::vector<layer_type> layers;
  norm_type final_norm;
  linear_type head;  //!< [vocab_size] outputs

  std::size_t bytes() const { return block.used() * sizeof(float); }

  //! Writes the embedding of a token, [hidden_size].
  void embed(token_id token, float* to) const {
    if (embedding) {
      std::copy_n(embedding + static_cast<std::ptrdiff_t>(token) * head.matrix.inputs(), head.matrix.inputs(), to);
    } else {
      head.matrix.get_row(token, to);
    }
  }

  static model_weights load(const model_config& config, safetensors_file& file) {
    model_weights weights;
    weights.layers.resize(static_cast<std::size_t>(config.n_layers));
    weights.place(config);
    // Shapes first: a config that claims too much is refused before memory is taken for it.
    weights.read(config, detail::tensor_reader(file, true));
    weights.block = detail::float_block(weights.block.used(), true);
    weights.place(config);
    weights.read(config, detail::tensor_reader(file));
    return weights;
  }

 private:
  // Gives every part its place in the block, or only counts where the block has no memory yet.
  void place(const model_config& c) {
    const auto vector = [&](bool there, int n) { return there ? block.take(static_cast<std::size_t>(n)) : nullptr; };
    const auto linear = [&](int outputs, int inputs, bool has_bias) {
      float* storage = block.take(MatrixT::storage_floats(outputs, inputs));
      return linear_type{MatrixT(outputs, inputs, storage), vector(has_bias, outputs)};
    };
    const bool neox = c.family == model_config::family_type::gpt_neox;
    const auto norm = [&] { return norm_type{vector(true, c.hidden_size), vector(neox, c.hidden_size)}; };
    if (!c.tied_embeddings) {
      embedding = block.take(static_cast<std::size_t>(c.vocab_size) * static_cast<std::size_t>(c.hidden_size));
    }
    for (layer_type& layer : layers) {
      layer.attention_norm = norm();
      layer.query_key_value = linear(c.query_size() + 2 * c.kv_size(), c.hidden_size, c.query_bias);
      layer.query_norm = vector(c.query_key_norm, c.head_dim);
      layer.key_norm = vector(c.query_key_norm, c.head_dim);
      layer.attention_out = linear(c.hidden_size, c.query_size(), c.attention_out_bias);
      layer.mlp_norm = norm();
      if (!neox) layer.gate = linear(c.intermediate_size, c.hidden_size, c.mlp_bias);
      layer.up = linear(c.intermediate_size, c.hidden_size, c.mlp_bias);
      layer.down = linear(c.hidden_size, c.intermediate_size, c.mlp_bias);
    }
    final_norm = norm();
    head = linear(c.vocab_size, c.hidden_size, false);
  }

  // Fills outputs first, first + 1, ... of a linear part from NAME.weight and NAME.bias.
  static void load_linear(detail::tensor_reader& tensors, const std::string& name, linear_type& part, int first,
                          int outputs) {
    tensors.matrix(name + ".weight", outputs, part.matrix.inputs(),
                   [&](int row, const float* values) { part.matrix.set_row(first + row, values); });
    if (part.bias) tensors.vector(name + ".bias", outputs, part.bias + first);
  }
  static void load_linear(detail::tensor_reader& tensors, const std::string& name, linear_type& part) {
    load_linear(tensors, name, part, 0, part.matrix.outputs());
  }

  static void load_norm(detail::tensor_reader& tensors, const std::string& name, norm_type& norm, int n) {
    tensors.vector(name + ".weight", n, norm.scale);
    if (norm.bias) tensors.vector(name + ".bias", n, norm.bias);
  }

  void read(const model_config& c, detail::tensor_reader tensors) {
    if (c.family == model_config::family_type::llama) {
      load_llama(c, tensors);
    } else {
      load_gpt_neox(c, tensors);
    }
  }

  void load_embedding(const model_config& c, detail::tensor_reader& tensors, const std::string& name,
                      const std::string& head_name) {
    tensors.matrix(name, c.vocab_size, c.hidden_size, [&](int row, const float* values) {
      if (c.tied_embeddings) {
        head.matrix.set_row(row, values);
      } else {
        std::copy_n(values, c.hidden_size, embedding + static_cast<std::ptrdiff_t>(row) * c.hidden_size);
      }
    });
    if (!c.tied_embeddings) load_linear(tensors, head_name, head);
  }

  void load_llama(const model_config& c, detail::tensor_reader& tensors) {
    load_embedding(c, tensors, "model.embed_tokens.weight", "lm_head");
    for (std::size_t i = 0; i < layers.size(); ++i) {
      layer_type& layer = layers[i];
      const std::string base = "model.layers." + std::to_string(i) + ".";
      const std::string attention = base + "self_attn.";
      load_norm(tensors, base + "input_layernorm", layer.attention_norm, c.hidden_size);
      linear_type& qkv = layer.query_key_value;
      load_linear(tensors, attention + "q_proj", qkv, 0, c.query_size());
      load_linear(tensors, attention + "k_proj", qkv, c.query_size(), c.kv_size());
      load_linear(tensors, attention + "v_proj", qkv, c.query_size() + c.kv_size(), c.kv_size());
      if (layer.query_norm) tensors.vector(attention + "q_norm.weight", c.head_dim, layer.query_norm);
      if (layer.key_norm) tensors.vector(attention + "k_norm.weight", c.head_dim, layer.key_norm);
      load_linear(tensors, attention + "o_proj", layer.attention_out);
      load_norm(tensors, base + "post_attention_layernorm", layer.mlp_norm, c.hidden_size);
      load_linear(tensors, base + "mlp.gate_proj", layer.gate);
      load_linear(tensors, base + "mlp.up_proj", layer.up);
      load_linear(tensors, base + "mlp.down_proj", layer.down);
    }
    load_norm(tensors, "model.norm", final_norm, c.hidden_size);
  }

  void load_gpt_neox(const model_config& c, detail::tensor_reader& tensors) {
    load_embedding(c, tensors, "gpt_neox.embed_in.weight", "embed_out");
    for (std::size_t i = 0; i < layers.size(); ++i) {
      layer_type& layer = layers[i];
      const std::string base = "gpt_neox.layers." + std::to_string(i) + ".";
      load_norm(tensors, base + "input_layernorm", layer.attention_norm, c.hidden_size);
      load_interleaved(c, tensors, base + "attention.query_key_value", layer.query_key_value);
      load_linear(tensors, base + "attention.dense", layer.attention_out);
      load_norm(tensors, base + "post_attention_layernorm", layer.mlp_norm, c.hidden_size);
      load_linear(tensors, base + "mlp.dense_h_to_4h", layer.up);
      load_linear(tensors, base + "mlp.dense_4h_to_h", layer.down);
    }
    load_norm(tensors, "gpt_neox.final_layer_norm", final_norm, c.hidden_size);
  }

  // GPT-NeoX keeps query, key and value of one head together; here all queries come first, then keys, then values.
  static void load_interleaved(const model_config& c, detail::tensor_reader& tensors, const std::string& name,
                               linear_type& part) {
    const int n = part.matrix.outputs();
    const auto place_of = [&](int row) {
      const int of_head = row / (3 * c.head_dim), which = row / c.head_dim % 3;
      return which * c.query_size() + of_head * c.head_dim + row % c.head_dim;
    };
    tensors.matrix(name + ".weight", n, part.matrix.inputs(),
                   [&](int row, const float* values) { part.matrix.set_row(place_of(row), values); });
    if (!part.bias) return;
    std::vector<float> bias(static_cast<std::size_t>(n));
    tensors.vector(name + ".bias", n, bias.data());
    for (int row = 0; row < n; ++row) {
      part.bias[place_of(row)] = bias[static_cast<std::size_t>(row)];
    }
  }
};

}  // namespace espalier
