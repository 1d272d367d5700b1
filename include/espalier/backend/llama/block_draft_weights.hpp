// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "espalier/backend/llama/block_draft_config.hpp"
#include "espalier/backend/llama/matrix_product.hpp"
#include "espalier/backend/llama/safetensors_file.hpp"
#include "espalier/backend/llama/tensor_reader.hpp"
#include "espalier/core/float_block.hpp"

namespace espalier {

//! The weights of a block draft in F32, in the layout that their product wants, all in one block of memory. Key and value
//! projections are one matrix, keys first.
//!
//! Complexity  load: peak memory is the weights as held and a buffer of 128 KiB or one row
//! Errors      model_error for a tensor that is missing or has another shape or dtype than the config asks for
template <MatrixProduct MatrixT>
struct block_draft_weights {
  struct layer_type {
    float* attention_norm = nullptr;  //!< [hidden_size]
    float* mlp_norm = nullptr;        //!< [hidden_size]
    MatrixT query, key_value, attention_out, gate, up, down;
  };

  detail::float_block block;
  MatrixT features;                //!< [hidden_size][layers read * hidden_size]
  float* features_norm = nullptr;  //!< [hidden_size]
  float* pending_norm = nullptr;   //!< [hidden_size]
  MatrixT pending;                 //!< [hidden_size][hidden_size]
  float* masked = nullptr;         //!< [block_length][hidden_size], what a row not yet written starts from
  std::vector<layer_type> layers;
  float* final_norm = nullptr;  //!< [hidden_size]

  std::size_t bytes() const { return block.used() * sizeof(float); }

  static block_draft_weights load(const block_draft_config& config, safetensors_file& file) {
    block_draft_weights weights;
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
  void place(const block_draft_config& c) {
    const auto norm = [&] { return block.take(static_cast<std::size_t>(c.hidden_size)); };
    const auto matrix = [&](int outputs, int inputs) {
      return MatrixT(outputs, inputs, block.take(MatrixT::storage_floats(outputs, inputs)));
    };
    features = matrix(c.hidden_size, features_size(c));
    features_norm = norm();
    pending_norm = norm();
    pending = matrix(c.hidden_size, c.hidden_size);
    masked = block.take(static_cast<std::size_t>(c.block_length) * static_cast<std::size_t>(c.hidden_size));
    for (layer_type& layer : layers) {
      layer.attention_norm = norm();
      layer.query = matrix(c.query_size(), c.hidden_size);
      layer.key_value = matrix(2 * c.kv_size(), c.hidden_size);
      layer.attention_out = matrix(c.hidden_size, c.query_size());
      layer.mlp_norm = norm();
      layer.gate = matrix(c.intermediate_size, c.hidden_size);
      layer.up = matrix(c.intermediate_size, c.hidden_size);
      layer.down = matrix(c.hidden_size, c.intermediate_size);
    }
    final_norm = norm();
  }

  static int features_size(const block_draft_config& c) {
    return static_cast<int>(c.hidden_layers.size()) * c.hidden_size;
  }

  // Fills outputs first, first + 1, ... of a matrix.
  static void load(detail::tensor_reader& tensors, const std::string& name, MatrixT& matrix, int first, int outputs) {
    tensors.matrix(name + ".weight", outputs, matrix.inputs(),
                   [&](int row, const float* values) { matrix.set_row(first + row, values); });
  }
  static void load(detail::tensor_reader& tensors, const std::string& name, MatrixT& matrix) {
    load(tensors, name, matrix, 0, matrix.outputs());
  }

  void read(const block_draft_config& c, detail::tensor_reader tensors) {
    load(tensors, "fc", features);
    tensors.vector("hidden_norm.weight", c.hidden_size, features_norm);
    tensors.vector("pending_norm.weight", c.hidden_size, pending_norm);
    load(tensors, "pending_proj", pending);
    tensors.matrix("mask_embed", c.block_length, c.hidden_size, [&](int row, const float* values) {
      std::copy_n(values, c.hidden_size, masked + static_cast<std::ptrdiff_t>(row) * c.hidden_size);
    });
    for (std::size_t i = 0; i < layers.size(); ++i) {
      layer_type& layer = layers[i];
      const std::string base = "layers." + std::to_string(i) + ".";
      const std::string attention = base + "self_attn.";
      tensors.vector(base + "input_layernorm.weight", c.hidden_size, layer.attention_norm);
      load(tensors, attention + "q_proj", layer.query);
      load(tensors, attention + "k_proj", layer.key_value, 0, c.kv_size());
      load(tensors, attention + "v_proj", layer.key_value, c.kv_size(), c.kv_size());
      load(tensors, attention + "o_proj", layer.attention_out);
      tensors.vector(base + "post_attention_layernorm.weight", c.hidden_size, layer.mlp_norm);
      load(tensors, base + "mlp.gate_proj", layer.gate);
      load(tensors, base + "mlp.up_proj", layer.up);
      load(tensors, base + "mlp.down_proj", layer.down);
    }
    tensors.vector("norm.weight", c.hidden_size, final_norm);
  }
};

}  // namespace espalier
