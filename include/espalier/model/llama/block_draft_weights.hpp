// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/files/safetensors_file.hpp"
#include "espalier/model/llama/block_draft_config.hpp"
#include "espalier/model/llama/block_draft_tensors.hpp"
#include "espalier/model/llama/matrix_product.hpp"

namespace espalier {

//! The weights of a block draft in F32, in the layout that their product wants, all in one block of memory. Key and
//! value projections are one matrix, keys first.
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
    loader to{weights, {}};
    detail::block_draft_tensors(config, file, to, true).read();
    weights.block = detail::float_block(weights.block.used(), true);
    weights.place(config);
    detail::block_draft_tensors(config, file, to, false).read();
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

  // Puts what the file holds in its place.
  struct loader {
    block_draft_weights& weights;
    std::vector<float> floats;

    void expect_rows(detail::block_place, int, int, weight_type) {}
    void set_row(detail::block_place place, int row, const weight_row& values) {
      if (place.part == detail::block_part::masked) {
        values.decode(weights.masked + static_cast<std::ptrdiff_t>(row) * values.n);
      } else {
        floats.resize(static_cast<std::size_t>(values.n));
        values.decode(floats.data());
        matrix(place).set_row(row, floats.data());
      }
    }
    void set_vector(detail::block_place place, const float* values, int n) { std::copy_n(values, n, norm(place)); }

    MatrixT& matrix(detail::block_place place) {
      layer_type& layer = weights.layers[static_cast<std::size_t>(place.layer)];
      switch (place.part) {
        case detail::block_part::features:
          return weights.features;
        case detail::block_part::pending:
          return weights.pending;
        case detail::block_part::query:
          return layer.query;
        case detail::block_part::key_value:
          return layer.key_value;
        case detail::block_part::attention_out:
          return layer.attention_out;
        case detail::block_part::gate:
          return layer.gate;
        case detail::block_part::up:
          return layer.up;
        default:
          return layer.down;
      }
    }

    float* norm(detail::block_place place) {
      layer_type& layer = weights.layers[static_cast<std::size_t>(place.layer)];
      switch (place.part) {
        case detail::block_part::features_norm:
          return weights.features_norm;
        case detail::block_part::pending_norm:
          return weights.pending_norm;
        case detail::block_part::attention_norm:
          return layer.attention_norm;
        case detail::block_part::mlp_norm:
          return layer.mlp_norm;
        default:
          return weights.final_norm;
      }
    }
  };
};

}  // namespace espalier
