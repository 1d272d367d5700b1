// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/files/rounded_row.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/files/weight_row.hpp"
#include "espalier/model/files/weight_storage.hpp"
#include "espalier/model/llama/mamba_weights.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_tensors.hpp"
#include "espalier/model/llama/weight_matrix.hpp"
#include "espalier/model/llama/weight_rows.hpp"

namespace espalier {

//! The weights of a transformer, matrices as their file stores them and all else in F32, all in one block of memory.
//!
//! Query, key and value projections are one matrix, rows in that order. A tied embedding is held once, as the output
//! projection. What a model does not have is null or has 0 outputs.
//!
//! Complexity  load: peak memory is the weights as held and a buffer of 128 KiB or one row
//! Errors      model_error for a tensor that is missing or has another shape or dtype than the config asks for
struct model_weights {
  //! Scale and, for LayerNorm, bias: [hidden_size] each.
  struct norm_type {
    float* scale = nullptr;
    float* bias = nullptr;
  };
  //! y = W x + bias; bias [outputs] or null.
  struct linear_type {
    weight_matrix matrix;
    float* bias = nullptr;
  };
  struct layer_type {
    norm_type attention_norm, mlp_norm;
    float* query_norm = nullptr;          //!< [head_dim]
    float* key_norm = nullptr;            //!< [head_dim]
    float* attention_out_norm = nullptr;  //!< [hidden_size]
    float* mlp_out_norm = nullptr;        //!< [hidden_size]
    linear_type query_key_value, attention_out, gate, up, down;
    mamba_weights mamba;  //!< of a recurrent layer, whose projections are query_key_value and attention_out
  };

  detail::float_block block;
  weight_rows embedding;  //!< [vocab_size][hidden_size]; empty where tied
  std::vector<layer_type> layers;
  norm_type final_norm;
  linear_type head;  //!< [vocab_size] outputs

  std::size_t bytes() const { return block.used() * sizeof(float); }

  //! Writes the embedding of a token, [hidden_size].
  void embed(token_id token, float* to) const {
    if (embedding.rows() > 0) {
      embedding.row(token).decode(to);
    } else {
      head.matrix.get_row(token, to);
    }
  }

  static model_weights load(const model_config& config, tensor_source& file,
                            weight_storage storage = weight_storage::as_stored) {
    model_weights weights;
    weights.layers.resize(static_cast<std::size_t>(config.n_layers));
    weights.shape(config);
    loader to{weights, storage, {}};
    // Shapes first: a config that claims too much is refused before memory is taken for it.
    detail::model_tensors(config, file, to, true).read();
    weights.place(config);
    weights.block = detail::float_block(weights.block.used(), true);
    weights.place(config);
    detail::model_tensors(config, file, to, false).read();
    return weights;
  }

 private:
  void shape(const model_config& c) {
    const auto linear = [](int outputs, int inputs) { return linear_type{weight_matrix(outputs, inputs)}; };
    if (!c.tied_embeddings) embedding = weight_rows(c.vocab_size, c.hidden_size);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      layer_type& layer = layers[i];
      const bool recurrent = c.is_recurrent(static_cast<int>(i));
      layer.query_key_value = linear(recurrent ? c.mamba.projected() : c.projected_size(), c.hidden_size);
      layer.attention_out = linear(c.hidden_size, recurrent ? c.mamba.inner() : c.query_size());
      if (c.gated_mlp) layer.gate = linear(c.intermediate_size, c.hidden_size);
      layer.up = linear(c.intermediate_size, c.hidden_size);
      layer.down = linear(c.hidden_size, c.intermediate_size);
    }
    head = linear(c.vocab_size, c.hidden_size);
  }

  // Gives every part its place in the block, or only counts where the block has no memory yet.
  void place(const model_config& c) {
    const auto vector = [&](bool there, int n) { return there ? block.take(static_cast<std::size_t>(n)) : nullptr; };
    const auto place = [&](linear_type& part, bool has_bias) {
      part.matrix.place(block.take(part.matrix.storage_floats()));
      part.bias = vector(has_bias, part.matrix.outputs());
    };
    const auto norm = [&] { return norm_type{vector(true, c.hidden_size), vector(c.layer_norm, c.hidden_size)}; };
    embedding.place(block.take(embedding.storage_floats()));
    for (std::size_t i = 0; i < layers.size(); ++i) {
      layer_type& layer = layers[i];
      const bool recurrent = c.is_recurrent(static_cast<int>(i));
      layer.attention_norm = norm();
      place(layer.query_key_value, recurrent ? c.mamba.projection_bias : c.query_bias);
      layer.query_norm = vector(c.query_key_norm, c.head_dim);
      layer.key_norm = vector(c.query_key_norm, c.head_dim);
      place(layer.attention_out, recurrent ? c.mamba.projection_bias : c.attention_out_bias);
      if (recurrent) {
        const mamba_shape& m = c.mamba;
        layer.mamba = {vector(true, m.taps * m.convolved()),
                       vector(m.convolution_bias, m.convolved()),
                       vector(true, m.heads),
                       vector(true, m.heads),
                       vector(true, m.heads),
                       vector(true, m.inner())};
      }
      layer.attention_out_norm = vector(c.output_norms, c.hidden_size);
      layer.mlp_norm = norm();
      place(layer.up, c.mlp_bias);
      if (c.gated_mlp) place(layer.gate, c.mlp_bias);
      place(layer.down, c.mlp_bias);
      layer.mlp_out_norm = vector(c.output_norms, c.hidden_size);
    }
    final_norm = norm();
    place(head, false);
  }

  // Puts what the file holds in its place.
  struct loader {
    model_weights& weights;
    weight_storage storage;
    rounded_row round;

    // Calls use(matrix or rows), whichever the part is.
    template <class UseT>
    void at(detail::part_place place, UseT&& use) {
      if (place.part == detail::model_part::embedding && weights.embedding.rows() > 0) return use(weights.embedding);
      use(detail::linear_at(weights, place).matrix);
    }
    void expect_rows(detail::part_place place, int first, int rows, weight_type type) {
      at(place, [&](auto& to) { to.expect_rows(first, rows, held_type(type, to.inputs(), storage)); });
    }
    void set_row(detail::part_place place, int row, const weight_row& values) {
      const weight_type type = held_type(values.type, values.n, storage);
      at(place, [&](auto& to) { to.set_row(row, type == values.type ? values : round(values, type)); });
    }
    void set_vector(detail::part_place place, const float* values, int n) {
      float* recurrent = weights.layers.empty() ? nullptr : detail::recurrent_at(weights, place);
      std::copy_n(values, n, recurrent ? recurrent : detail::scale_at(weights, place));
    }
    void set_bias(detail::part_place place, int first, const float* values, int n) {
      std::copy_n(values, n, detail::bias_at(weights, place) + first);
    }
  };
};

}  // namespace espalier
