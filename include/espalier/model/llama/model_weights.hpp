// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/llama/matrix_product.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_tensors.hpp"

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
    float* query_norm = nullptr;          //!< [head_dim]
    float* key_norm = nullptr;            //!< [head_dim]
    float* attention_out_norm = nullptr;  //!< [hidden_size]
    float* mlp_out_norm = nullptr;        //!< [hidden_size]
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

  static model_weights load(const model_config& config, tensor_source& file) {
    model_weights weights;
    weights.layers.resize(static_cast<std::size_t>(config.n_layers));
    weights.place(config);
    // Shapes first: a config that claims too much is refused before memory is taken for it.
    loader to{weights, {}};
    detail::model_tensors(config, file, to, true).read();
    weights.block = detail::float_block(weights.block.used(), true);
    weights.place(config);
    detail::model_tensors(config, file, to, false).read();
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
    const auto norm = [&] { return norm_type{vector(true, c.hidden_size), vector(c.layer_norm, c.hidden_size)}; };
    if (!c.tied_embeddings) {
      embedding = block.take(static_cast<std::size_t>(c.vocab_size) * static_cast<std::size_t>(c.hidden_size));
    }
    for (layer_type& layer : layers) {
      layer.attention_norm = norm();
      layer.query_key_value = linear(c.query_size() + 2 * c.kv_size(), c.hidden_size, c.query_bias);
      layer.query_norm = vector(c.query_key_norm, c.head_dim);
      layer.key_norm = vector(c.query_key_norm, c.head_dim);
      layer.attention_out = linear(c.hidden_size, c.query_size(), c.attention_out_bias);
      layer.attention_out_norm = vector(c.output_norms, c.hidden_size);
      layer.mlp_norm = norm();
      if (c.gated_mlp) layer.gate = linear(c.intermediate_size, c.hidden_size, c.mlp_bias);
      layer.up = linear(c.intermediate_size, c.hidden_size, c.mlp_bias);
      layer.down = linear(c.hidden_size, c.intermediate_size, c.mlp_bias);
      layer.mlp_out_norm = vector(c.output_norms, c.hidden_size);
    }
    final_norm = norm();
    head = linear(c.vocab_size, c.hidden_size, false);
  }

  // Puts what the file holds in its place.
  struct loader {
    model_weights& weights;
    std::vector<float> floats;

    void expect_rows(detail::part_place, int, int, weight_type) {}
    void set_row(detail::part_place place, int row, const weight_row& values) {
      linear_type& part = detail::linear_at(weights, place);
      if (place.part == detail::model_part::embedding && weights.embedding) {
        return values.decode(weights.embedding + static_cast<std::ptrdiff_t>(row) * values.n);
      }
      floats.resize(static_cast<std::size_t>(values.n));
      values.decode(floats.data());
      part.matrix.set_row(row, floats.data());
    }
    void set_vector(detail::part_place place, const float* values, int n) {
      std::copy_n(values, n, detail::scale_at(weights, place));
    }
    void set_bias(detail::part_place place, int first, const float* values, int n) {
      std::copy_n(values, n, detail::bias_at(weights, place) + first);
    }
  };
};

}  // namespace espalier
