// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

#include "espalier/cuda/model/llama/array_pieces.cuh"
#include "espalier/cuda/model/llama/number.cuh"
#include "espalier/cuda/model/llama/row_upload.cuh"
#include "espalier/model/files/safetensors_file.hpp"
#include "espalier/model/llama/block_draft_config.hpp"
#include "espalier/model/llama/block_draft_tensors.hpp"

namespace espalier::cuda {

//! The weights of a block draft in the memory of the device, matrices as NumberT in rows of inputs, norms as float.
//! Query, key and value projections are one matrix, rows in that order; so are gate and up.
//!
//! Complexity  load: reads the file once; 4 MiB of host memory. Synchronises
//! Errors      model_error for a tensor that is missing or has another shape or dtype than the config asks for;
//!             cuda_error
template <class NumberT>
struct block_draft_weights {
  static_assert(detail::is_model_number<NumberT>,
                "a transformer on the device computes with float, __half or __nv_bfloat16");

  struct layer_type {
    float* attention_norm = nullptr;     //!< [hidden_size]
    float* mlp_norm = nullptr;           //!< [hidden_size]
    NumberT* query_key_value = nullptr;  //!< [query_size + 2 kv_size][hidden_size]
    NumberT* key_value = nullptr;        //!< the last rows of it
    NumberT* attention_out = nullptr;    //!< [hidden_size][query_size]
    NumberT* gate_up = nullptr;          //!< [2 intermediate_size][hidden_size]
    NumberT* down = nullptr;             //!< [hidden_size][intermediate_size]
  };

  detail::array_pieces<NumberT> matrices;
  detail::array_pieces<float> vectors;
  NumberT* features = nullptr;     //!< [hidden_size][layers read * hidden_size]
  NumberT* pending = nullptr;      //!< [hidden_size][hidden_size]
  NumberT* masked = nullptr;       //!< [block_length][hidden_size], what a row not yet written starts from
  float* features_norm = nullptr;  //!< [hidden_size]
  float* pending_norm = nullptr;   //!< [hidden_size]
  float* final_norm = nullptr;     //!< [hidden_size]
  std::vector<layer_type> layers;

  std::size_t bytes() const { return matrices.bytes() + vectors.bytes(); }

  static block_draft_weights load(const block_draft_config& config, safetensors_file& file) {
    block_draft_weights weights;
    weights.layers.resize(static_cast<std::size_t>(config.n_layers));
    weights.place(config);
    loader to{weights, static_cast<std::size_t>(config.intermediate_size), {}, {}};
    espalier::detail::block_draft_tensors(config, file, to, true).read();
    weights.matrices.allocate();
    weights.vectors.allocate();
    weights.place(config);
    espalier::detail::block_draft_tensors(config, file, to, false).read();
    to.upload.flush();
    return weights;
  }

 private:
  // Gives every part its place, or only counts where there is no memory yet.
  void place(const block_draft_config& c) {
    const auto size = [](int n) { return static_cast<std::size_t>(n); };
    const auto matrix = [&](int outputs, int inputs) { return matrices.take(size(outputs) * size(inputs)); };
    const auto norm = [&] { return vectors.take(size(c.hidden_size)); };
    features = matrix(c.hidden_size, static_cast<int>(c.hidden_layers.size()) * c.hidden_size);
    pending = matrix(c.hidden_size, c.hidden_size);
    masked = matrix(c.block_length, c.hidden_size);
    features_norm = norm(), pending_norm = norm(), final_norm = norm();
    for (layer_type& layer : layers) {
      layer.attention_norm = norm(), layer.mlp_norm = norm();
      layer.query_key_value = matrix(c.query_size() + 2 * c.kv_size(), c.hidden_size);
      layer.key_value = layer.query_key_value;
      if (layer.key_value != nullptr) layer.key_value += size(c.query_size()) * size(c.hidden_size);
      layer.attention_out = matrix(c.hidden_size, c.query_size());
      layer.gate_up = matrix(2 * c.intermediate_size, c.hidden_size);
      layer.down = matrix(c.hidden_size, c.intermediate_size);
    }
  }

  // Puts what the file holds in its place.
  struct loader {
    block_draft_weights& weights;
    std::size_t intermediate_size;
    detail::row_upload<NumberT> upload;
    std::vector<float> floats;

    using part = espalier::detail::model_part;

    void expect_rows(espalier::detail::part_place, int, int, weight_type) {}
    void set_row(espalier::detail::part_place place, int row, const weight_row& values) {
      const std::size_t first = static_cast<std::size_t>(row) + (place.part == part::up ? intermediate_size : 0);
      floats.resize(static_cast<std::size_t>(values.n));
      values.decode(floats.data());
      upload.add(matrix(place) + first * floats.size(), floats.data(), floats.size());
    }
    void set_vector(espalier::detail::part_place place, const float* values, int n) {
      detail::upload_vector(norm(place), values, n);
    }

    NumberT* matrix(espalier::detail::part_place place) const {
      const layer_type& layer = weights.layers[static_cast<std::size_t>(place.layer)];
      switch (place.part) {
        case part::features:
          return weights.features;
        case part::pending:
          return weights.pending;
        case part::masked:
          return weights.masked;
        case part::query:
          return layer.query_key_value;
        case part::key_value:
          return layer.key_value;
        case part::attention_out:
          return layer.attention_out;
        case part::gate:
        case part::up:
          return layer.gate_up;
        default:
          return layer.down;
      }
    }

    float* norm(espalier::detail::part_place place) const {
      const layer_type& layer = weights.layers[static_cast<std::size_t>(place.layer)];
      switch (place.part) {
        case part::features_norm:
          return weights.features_norm;
        case part::pending_norm:
          return weights.pending_norm;
        case part::attention_norm:
          return layer.attention_norm;
        case part::mlp_norm:
          return layer.mlp_norm;
        default:
          return weights.final_norm;
      }
    }
  };
};

}  // namespace espalier::cuda
