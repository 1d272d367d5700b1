// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/files/rounded_row.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/files/weight_row.hpp"
#include "espalier/model/files/weight_storage.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_tensors.hpp"
#include "espalier/model/llama/model_weights.hpp"
#include "espalier/model/llama/weight_matrix.hpp"
#include "espalier/model/llama/weight_rows.hpp"
#include "espalier/model/parallel/rank_part.hpp"
#include "espalier/model/parallel/rank_rows.hpp"
#include "espalier/model/parallel/rank_split.hpp"

namespace espalier {

//! A rank's part of a transformer's weights. Norms are whole; of every matrix a rank has the outputs of its part, or,
//! with rank_split::sums, of attention_out and down all outputs of the inputs of its part.
//!
//! Complexity  load reads of each matrix the rank's rows alone; of a matrix that is divided by inputs, of every row the
//!             blocks, of 32 inputs at least, that hold the rank's, or the whole row where that leaves out less than 16
//!             KiB. A part that does not begin and end with a block of the type it would be held in is held as floats
//! Errors      as model_weights
class rank_weights {
  static_assert(rank_part::granule % weight_matrix::granule == 0, "a rank's outputs are whole granules of a matrix");

 public:
  using layer_type = model_weights::layer_type;
  using linear_type = model_weights::linear_type;

  model_weights own;  //!< with the rank's outputs alone, numbered from 0

  static rank_weights load(const model_config& config, tensor_source& file, const rank_part& part, rank_split split,
                           weight_storage storage = weight_storage::as_stored) {
    rank_weights weights;
    weights.own.layers.resize(static_cast<std::size_t>(config.n_layers));
    weights.shape(config, part, split);
    loader to{weights.own, config, {config, part, split}, storage, {}, {}, 0};
    detail::model_tensors(config, file, to, true).read();
    weights.place(config, part);
    weights.own.block = detail::float_block(weights.own.block.used(), true);
    weights.place(config, part);
    detail::model_tensors(config, file, to, false).read();
    weights.weights_taken_ = to.weights_taken;
    return weights;
  }

  std::size_t bytes() const { return own.bytes(); }
  //! Weights of matrices that load took from the file; those of a block that ranks share are counted by each.
  std::int64_t weights_taken() const { return weights_taken_; }

 private:
  void shape(const model_config& c, const rank_part& part, rank_split split) {
    const auto linear = [](int outputs, int inputs) { return linear_type{weight_matrix(outputs, inputs)}; };
    const bool sums = split == rank_split::sums;
    if (!c.tied_embeddings) own.embedding = weight_rows(part.vocabulary.size(), c.hidden_size);
    for (layer_type& layer : own.layers) {
      const int queries = part.queries(c).size(), width = part.intermediate.size();
      layer.query_key_value = linear(queries + 2 * part.kv_size(c), c.hidden_size);
      layer.attention_out = sums ? linear(c.hidden_size, queries) : linear(part.hidden.size(), c.query_size());
      if (c.gated_mlp) layer.gate = linear(width, c.hidden_size);
      layer.up = linear(width, c.hidden_size);
      layer.down = sums ? linear(c.hidden_size, width) : linear(part.hidden.size(), c.intermediate_size);
    }
    own.head = linear(part.vocabulary.size(), c.hidden_size);
  }

  // As model_weights does; biases of what goes back to the stream are those of the rank's part of it.
  void place(const model_config& c, const rank_part& part) {
    const auto vector = [&](bool there, int n) {
      return there ? own.block.take(static_cast<std::size_t>(n)) : nullptr;
    };
    const auto place = [&](linear_type& linear, int biases) {
      linear.matrix.place(own.block.take(linear.matrix.storage_floats()));
      linear.bias = vector(biases > 0, biases);
    };
    const auto norm = [&] {
      return model_weights::norm_type{vector(true, c.hidden_size), vector(c.layer_norm, c.hidden_size)};
    };
    own.embedding.place(own.block.take(own.embedding.storage_floats()));
    for (layer_type& layer : own.layers) {
      layer.attention_norm = norm();
      place(layer.query_key_value, c.query_bias ? layer.query_key_value.matrix.outputs() : 0);
      layer.query_norm = vector(c.query_key_norm, c.head_dim);
      layer.key_norm = vector(c.query_key_norm, c.head_dim);
      place(layer.attention_out, c.attention_out_bias ? part.hidden.size() : 0);
      layer.attention_out_norm = vector(c.output_norms, c.hidden_size);
      layer.mlp_norm = norm();
      place(layer.up, c.mlp_bias ? part.intermediate.size() : 0);
      if (c.gated_mlp) place(layer.gate, c.mlp_bias ? part.intermediate.size() : 0);
      place(layer.down, c.mlp_bias ? part.hidden.size() : 0);
      layer.mlp_out_norm = vector(c.output_norms, c.hidden_size);
    }
    own.final_norm = norm();
    place(own.head, 0);
  }

  struct loader {
    model_weights& weights;
    const model_config& config;
    detail::rank_rows rows;
    weight_storage storage;
    rounded_row round;
    std::vector<float> values;
    std::int64_t weights_taken;

    bool wants(detail::part_place place, int row) const { return rows.own_row(place, row) >= 0; }
    detail::column_range inputs(detail::part_place place, weight_type type) const {
      return rows.inputs_to_read(place, type);
    }

    template <class UseT>
    void at(detail::part_place place, UseT&& use) {
      if (place.part == detail::model_part::embedding && !config.tied_embeddings) return use(weights.embedding);
      use(detail::linear_at(weights, place).matrix);
    }

    static bool ends_with_blocks(rank_part::range inputs, int all, weight_type type) {
      const int block = block_weights(type);
      return inputs.begin % block == 0 && (inputs.end % block == 0 || inputs.end == all);
    }
    weight_type type_of(detail::part_place place, weight_type held) const {
      const bool whole = !rows.is_cut(place);
      return whole || ends_with_blocks(rows.inputs_of(place), rows.inputs_in_file(place), held) ? held
                                                                                                : weight_type::f32;
    }

    void expect_rows(detail::part_place place, int first, int n, weight_type type) {
      const weight_type held = type_of(place, held_type(type, rows.inputs_in_file(place), storage));
      at(place, [&](auto& to) {
        for (int row = first; row < first + n; ++row) {
          if (const int own = rows.own_row(place, row); own >= 0) to.expect_rows(own, 1, held);
        }
      });
    }
    void set_row(detail::part_place place, int row, const weight_row& values_in_file) {
      weights_taken += values_in_file.n;
      const weight_type type = held_type(values_in_file.type, rows.inputs_in_file(place), storage);
      const weight_row read = type == values_in_file.type ? values_in_file : round(values_in_file, type);
      const int own = rows.own_row(place, row), first = inputs(place, values_in_file.type).begin;
      at(place, [&](auto& to) { to.set_row(own, rows.is_cut(place) ? cut(place, read, first) : read); });
    }
    // The rank's inputs of a row that begins with input `first`.
    weight_row cut(detail::part_place place, const weight_row& row, int first) {
      const rank_part::range own = rows.inputs_of(place);
      if (own.size() == 0) return {type_of(place, row.type), {}, 0, row.scale};
      if (type_of(place, row.type) == row.type) {
        const std::size_t begin = row_bytes(row.type, own.begin - first), end = row_bytes(row.type, own.end - first);
        return {row.type, row.bytes.subspan(begin, end - begin), own.size(), row.scale};
      }
      values.resize(static_cast<std::size_t>(row.n));
      row.decode(values.data());
      return weight_row::of(values.data() + (own.begin - first), own.size());
    }
    void set_vector(detail::part_place place, const float* from, int n) {
      std::copy_n(from, n, detail::scale_at(weights, place));
    }
    void set_bias(detail::part_place place, int first, const float* from, int n) {
      using detail::model_part;
      float* to = detail::bias_at(weights, place);
      if (place.part == model_part::attention_norm || place.part == model_part::mlp_norm ||
          place.part == model_part::final_norm) {
        std::copy_n(from, n, to + first);
        return;
      }
      for (int i = 0; i < n; ++i) {
        if (const int own = rows.own_output(place, first + i); own >= 0) to[own] = from[i];
      }
    }
  };

  std::int64_t weights_taken_ = 0;
};

}  // namespace espalier
