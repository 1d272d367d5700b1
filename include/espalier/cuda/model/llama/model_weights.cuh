// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/llama/llama_backend.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/cuda/model/llama/array_pieces.cuh"
#include "espalier/cuda/model/llama/number.cuh"
#include "espalier/cuda/model/llama/row_upload.cuh"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_tensors.hpp"

namespace espalier::cuda {

namespace detail {

// Refuses a model that has layers which no kernel computes.
//
// Errors: model_error
inline void require_on_device(const model_config& c) {
  if (!c.is_hybrid()) return;
  raise<model_error>("a ", c.family,
                     " model has recurrent layers (Mamba-2), which the transformer on the device does not compute; the "
                     "host's, espalier::llama_backend, does.");
}

// The sizes of the matrices in memory. A rank has a part of a model, and so smaller ones than the whole model.
struct weight_widths {
  int vocabulary = 0;    // outputs of the head, rows of the embedding
  int projected = 0;     // outputs of the query, key and value projections
  int attended = 0;      // inputs of attention_out
  int intermediate = 0;  // outputs of gate, and of up
  int activated = 0;     // inputs of down
  int back = 0;          // outputs of attention_out and of down, whose biases are whole

  static weight_widths whole(const model_config& c) {
    return {c.vocab_size, c.projected_size(), c.query_size(), c.intermediate_size, c.intermediate_size, c.hidden_size};
  }
};

}  // namespace detail

//! The weights of a transformer in the memory of the device: espalier::model_weights' twin, matrices as NumberT in rows
//! of inputs, norms and biases as float.
//!
//! Query, key and value projections are one matrix, rows in that order; so are gate and up. A tied embedding is held
//! once.
//!
//! Shapes      matrix [outputs][inputs]; pointers to parts that a model does not have are null
//! Complexity  load: reads the file once; 4 MiB of host memory; int8 rows are multiplied by their scales on the way.
//!             Synchronises
//! Errors      model_error for a tensor that is missing or has another shape or dtype than the config asks for, and for
//!             a model with recurrent layers, which the device does not compute; cuda_error
template <class NumberT>
struct model_weights {
  static_assert(detail::is_model_number<NumberT>,
                "a transformer on the device computes with float, __half or __nv_bfloat16");

  struct norm_type {
    float* scale = nullptr;
    float* bias = nullptr;
  };
  struct linear_type {
    NumberT* matrix = nullptr;
    float* bias = nullptr;
    int inputs = 0;
  };
  struct layer_type {
    norm_type attention_norm, mlp_norm;
    float* query_norm = nullptr;          //!< [head_dim]
    float* key_norm = nullptr;            //!< [head_dim]
    float* attention_out_norm = nullptr;  //!< [hidden_size]
    float* mlp_out_norm = nullptr;        //!< [hidden_size]
    linear_type query_key_value, attention_out;
    linear_type gate, up;  //!< up's rows follow gate's, in matrix and bias
    linear_type down;
  };

  detail::array_pieces<NumberT> matrices;
  detail::array_pieces<float> vectors;
  NumberT* embedding = nullptr;  //!< [vocab_size][hidden_size]; the head's where tied
  std::vector<layer_type> layers;
  norm_type final_norm;
  linear_type head;

  std::size_t bytes() const { return matrices.bytes() + vectors.bytes(); }

  //! Memory for the weights of a model, or of a part of it, which the caller fills. The matrices begin with the head's,
  //! the norms and biases with the first layer's norm.
  static model_weights of_shape(const model_config& config) {
    return of_shape(config, detail::weight_widths::whole(config));
  }
  static model_weights of_shape(const model_config& config, const detail::weight_widths& widths) {
    detail::require_on_device(config);
    model_weights weights;
    weights.layers.resize(static_cast<std::size_t>(config.n_layers));
    weights.place(config, widths);
    weights.matrices.allocate();
    weights.vectors.allocate();
    weights.place(config, widths);
    return weights;
  }

  static model_weights load(const model_config& config, espalier::tensor_source& file) {
    model_weights weights;
    loader to{weights, {}, {}};
    espalier::detail::model_tensors(config, file, to, true).read();
    weights = of_shape(config);
    espalier::detail::model_tensors(config, file, to, false).read();
    to.upload.flush();
    return weights;
  }

 private:
  // Gives each part its memory; while there is none yet, counts how much all parts need.
  void place(const model_config& c, const detail::weight_widths& w) {
    const auto size = [](int n) { return static_cast<std::size_t>(n); };
    const auto vector = [&](bool there, int n) { return there ? vectors.take(size(n)) : nullptr; };
    const auto linear = [&](int outputs, int inputs, bool has_bias) {
      return linear_type{matrices.take(size(outputs) * size(inputs)), vector(has_bias, outputs), inputs};
    };
    const auto norm = [&] { return norm_type{vector(true, c.hidden_size), vector(c.layer_norm, c.hidden_size)}; };
    const auto back = [&](int inputs, bool has_bias) {
      return linear_type{matrices.take(size(w.back) * size(inputs)), vector(has_bias, c.hidden_size), inputs};
    };
    head = linear(w.vocabulary, c.hidden_size, false);
    embedding = c.tied_embeddings ? head.matrix : matrices.take(size(w.vocabulary) * size(c.hidden_size));
    for (layer_type& layer : layers) {
      layer.attention_norm = norm();
      layer.query_key_value = linear(w.projected, c.hidden_size, c.query_bias);
      layer.query_norm = vector(c.query_key_norm, c.head_dim);
      layer.key_norm = vector(c.query_key_norm, c.head_dim);
      layer.attention_out = back(w.attended, c.attention_out_bias);
      layer.attention_out_norm = vector(c.output_norms, c.hidden_size);
      layer.mlp_norm = norm();
      layer.up = linear((c.gated_mlp ? 2 : 1) * w.intermediate, c.hidden_size, c.mlp_bias);
      if (c.gated_mlp) {
        layer.gate = layer.up;
        if (layer.up.matrix) layer.up.matrix += size(w.intermediate) * size(c.hidden_size);
        if (layer.up.bias) layer.up.bias += w.intermediate;
      }
      layer.down = back(w.activated, c.mlp_bias);
      layer.mlp_out_norm = vector(c.output_norms, c.hidden_size);
    }
    final_norm = norm();
  }

  // Copies the tensors that model_tensors reads to the parts' memory.
  struct loader {
    model_weights& weights;
    detail::row_upload<NumberT> upload;
    std::vector<float> floats;

    void expect_rows(espalier::detail::part_place, int, int, weight_type) {}
    void set_row(espalier::detail::part_place place, int row, const weight_row& values) {
      const linear_type& part = espalier::detail::linear_at(weights, place);
      const auto inputs = static_cast<std::size_t>(part.inputs);
      NumberT* matrix = place.part == espalier::detail::model_part::embedding ? weights.embedding : part.matrix;
      floats.resize(inputs);
      values.decode(floats.data());
      upload.add(matrix + static_cast<std::size_t>(row) * inputs, floats.data(), inputs);
    }
    void set_vector(espalier::detail::part_place place, const float* values, int n) {
      detail::upload_vector(espalier::detail::scale_at(weights, place), values, n);
    }
    void set_bias(espalier::detail::part_place place, int first, const float* values, int n) {
      detail::upload_vector(espalier::detail::bias_at(weights, place) + first, values, n);
    }
  };
};

}  // namespace espalier::cuda
