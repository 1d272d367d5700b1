// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/files/safetensors_file.hpp"
#include "espalier/model/llama/block_draft_config.hpp"
#include "espalier/model/llama/block_draft_tensors.hpp"
#include "espalier/model/llama/weight_matrix.hpp"

namespace espalier {

//! The weights of a block draft in F32, in the layout that their product wants, all in one block of memory. Key and
//! value projections are one matrix, keys first.
//!
//! Complexity  load: peak memory is the weights as held and a buffer of 128 KiB or one row
//! Errors      model_error for a tensor that is missing or has another shape or dtype than the config asks for
struct block_draft_weights {
  struct layer_type {
    float* attention_norm = nullptr;  //!< [hidden_size]
    float* mlp_norm = nullptr;        //!< [hidden_size]
    weight_matrix query, key_value, attention_out, gate, up, down;
  };

  detail::float_block block;
  weight_matrix features;          //!< [hidden_size][layers read * hidden_size]
  float* features_norm = nullptr;  //!< [hidden_size]
  float* pending_norm = nullptr;   //!< [hidden_size]
  weight_matrix pending;           //!< [hidden_size][hidden_size]
  float* masked = nullptr;         //!< [block_length][hidden_size], what a row not yet written starts from
  std::vector<layer_type> layers;
  float* final_norm = nullptr;  //!< [hidden_size]

  std::size_t bytes() const { return block.used() * sizeof(float); }

  static block_draft_weights load(const block_draft_config& config, safetensors_file& file) {
    block_draft_weights weights;
    weights.layers.resize(static_cast<std::size_t>(config.n_layers));
    weights.shape(config);
    loader to{weights};
    // Shapes first: a config that claims too much is refused before memory is taken for it.
    detail::block_draft_tensors(config, file, to, true).read();
    weights.place(config);
    weights.block = detail::float_block(weights.block.used(), true);
    weights.place(config);
    detail::block_draft_tensors(config, file, to, false).read();
    return weights;
  }

 private:
  void shape(const block_draft_config& c) {
    features = {c.hidden_size, features_size(c)};
    pending = {c.hidden_size, c.hidden_size};
    for (layer_type& layer : layers) {
      layer.query = {c.query_size(), c.hidden_size};
      layer.key_value = {2 * c.kv_size(), c.hidden_size};
      layer.attention_out = {c.hidden_size, c.query_size()};
      layer.gate = layer.up = {c.intermediate_size, c.hidden_size};
      layer.down = {c.hidden_size, c.intermediate_size};
    }
  }

  // Gives every part its place in the block, or only counts where the block has no memory yet.
  void place(const block_draft_config& c) {
    const auto norm = [&] { return block.take(static_cast<std::size_t>(c.hidden_size)); };
    const auto place = [&](weight_matrix& matrix) { matrix.place(block.take(matrix.storage_floats())); };
    place(features);
    features_norm = norm();
    pending_norm = norm();
    place(pending);
    masked = block.take(static_cast<std::size_t>(c.block_length) * static_cast<std::size_t>(c.hidden_size));
    for (layer_type& layer : layers) {
      layer.attention_norm = norm();
      layer.mlp_norm = norm();
      for (weight_matrix* matrix :
           {&layer.query, &layer.key_value, &layer.attention_out, &layer.up, &layer.gate, &layer.down})
        place(*matrix);
    }
    final_norm = norm();
  }

  static int features_size(const block_draft_config& c) {
    return static_cast<int>(c.hidden_layers.size()) * c.hidden_size;
  }

  // Puts what the file holds in its place.
  struct loader {
    block_draft_weights& weights;

    void expect_rows(detail::block_place place, int first, int rows, weight_type) {
      if (place.part != detail::block_part::masked) matrix(place).expect_rows(first, rows, weight_type::f32);
    }
    void set_row(detail::block_place place, int row, const weight_row& values) {
      if (place.part == detail::block_part::masked) {
        values.decode(weights.masked + static_cast<std::ptrdiff_t>(row) * values.n);
      } else {
        matrix(place).set_row(row, values);
      }
    }
    void set_vector(detail::block_place place, const float* values, int n) { std::copy_n(values, n, norm(place)); }

    weight_matrix& matrix(detail::block_place place) {
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
