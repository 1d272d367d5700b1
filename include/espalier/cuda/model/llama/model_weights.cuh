// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/llama/llama_backend.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/cuda/model/llama/array_pieces.cuh"
#include "espalier/cuda/model/llama/number.cuh"
#include "espalier/cuda/model/llama/row_upload.cuh"
#include "espalier/model/files/tensor_reader.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/files/weight_type.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_tensors.hpp"
#include "espalier/model/llama/recurrent_block_shape.hpp"

namespace espalier::cuda {

namespace detail {

// Largest recurrent state of a channel that a kernel computes: its numbers are in the registers of a warp.
inline constexpr int most_state = 256;

// Refuses a model that has layers which no kernel computes.
//
// Errors: model_error
inline void require_on_device(const model_config& c) {
  if (c.whole_query_key_norm && c.query_bias) {
    raise<model_error>("this model (", c.family,
                       ") has biases of queries and keys beside norms over all their heads, which the transformer on "
                       "the device does not compute; the host's, espalier::llama_backend, does.");
  }
  if (c.recurrence.state > most_state) {
    raise<model_error>("this model (", c.family, ") has recurrent states of ", c.recurrence.state,
                       " numbers a channel, but the transformer on the device computes at most ", most_state,
                       "; the host's, espalier::llama_backend, computes more.");
  }
}

// A PartT of weight_upload for a device that holds the whole model: all rows of all matrices. The PartT of a rank is
// espalier::detail::rank_rows.
struct whole_rows {
  const model_config& config;

  espalier::detail::matrix_size held(espalier::detail::part_place place) const {
    return espalier::detail::held_size_of(config, place);
  }
  int own_row(espalier::detail::part_place place, int row) const {
    return espalier::detail::held_row_of(config, place, row);
  }
  int own_output(espalier::detail::part_place, int row) const { return row; }
  espalier::detail::column_range numbers_of(espalier::detail::part_place, int n) const { return {0, n}; }
  bool is_cut(espalier::detail::part_place) const { return false; }
  espalier::detail::column_range inputs_of(espalier::detail::part_place place) const { return {0, held(place).inputs}; }
  espalier::detail::column_range inputs_to_read(espalier::detail::part_place place, weight_type) const {
    return inputs_of(place);
  }
};

// Takes tensors from model_tensors or block_draft_tensors, and copies them to their arrays in `weights`. PartT says
// which rows and columns of the tensors these arrays hold.
template <class NumberT, class WeightsT, class PartT>
struct weight_upload {
  using part_place = espalier::detail::part_place;
  using model_part = espalier::detail::model_part;

  WeightsT& weights;
  const PartT& part;
  row_upload<NumberT> upload{};
  std::vector<float> floats{};
  std::int64_t weights_taken = 0;  // number of weights of matrices read so far

  bool wants(part_place place, int row) const { return part.own_row(place, row) >= 0; }
  espalier::detail::column_range inputs(part_place place, weight_type type) const {
    return part.inputs_to_read(place, type);
  }
  void expect_rows(part_place, int, int, weight_type) {}

  void set_row(part_place place, int row, const weight_row& values) {
    const auto& linear = espalier::detail::linear_at(weights, place);
    NumberT* matrix = linear.matrix;
    if constexpr (requires { weights.embedding; }) {
      if (place.part == model_part::embedding) matrix = weights.embedding;
    }
    const int first =
        part.is_cut(place) && linear.inputs > 0 ? part.inputs_of(place).begin - inputs(place, values.type).begin : 0;
    add_row(matrix, part.own_row(place, row), values, first, linear.inputs);
  }
  // Copies n numbers of `values`, from number `first` on, to a row of a matrix with n columns.
  void add_row(NumberT* matrix, int row, const weight_row& values, int first, int n) {
    weights_taken += values.n;
    floats.resize(static_cast<std::size_t>(values.n));
    values.decode(floats.data());
    const auto size = static_cast<std::size_t>(n);
    upload.add(matrix + static_cast<std::size_t>(row) * size, floats.data() + first, size);
  }

  void set_vector(part_place place, const float* values, int n) {
    const auto own = part.numbers_of(place, n);
    float* const recurrent = weights.layers.empty() ? nullptr : espalier::detail::recurrent_at(weights, place);
    upload_vector(recurrent != nullptr ? recurrent : espalier::detail::scale_at(weights, place), values + own.begin,
                  own.end - own.begin);
  }

  void set_bias(part_place place, int first, const float* values, int n) {
    float* to = espalier::detail::bias_at(weights, place);
    if (place.part != model_part::query_key_value && place.part != model_part::gate && place.part != model_part::up) {
      upload_vector(to + first, values, n);  // these biases are whole on each rank
      return;
    }
    // Copies the biases that this part holds, in runs that lie one after another.
    for (int i = 0, end = 0; i < n; i = end) {
      const int first_own = part.own_output(place, first + i);
      for (end = i + 1; first_own >= 0 && end < n && part.own_output(place, first + end) == first_own + end - i;)
        ++end;
      if (first_own >= 0) upload_vector(to + first_own, values + i, end - i);
    }
  }
};

}  // namespace detail

//! The weights of a transformer in the memory of the device, as espalier::model_weights on the host: matrices as
//! NumberT, row by row, norms and biases as float.
//!
//! Query, key and value projections are one matrix, rows in that order; so are gate and up. The matrices `gate` of all
//! experts of a layer follow one another, and so do their biases; likewise `up` and `down`. A tied embedding is held
//! once, unless the output matrix has the rows of some tokens alone.
//!
//! Shapes      matrix [outputs][inputs]; pointers to parts that a model, or its file, does not have are null
//! Complexity  load: reads the file once; host memory for 2^21 numbers; int8 rows are multiplied by their scales on the
//!             way. Synchronises
//! Errors      model_error for a tensor that is missing or unknown, or has another shape or dtype than the config asks
//!             for, for a weight beyond the range of NumberT, and for a model with recurrent states of more than 256
//!             numbers a channel, or with biases beside norms over all heads, which the device does not compute;
//!             cuda_error
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
  struct expert_type {
    linear_type gate, up, down;
  };
  struct layer_type {
    norm_type attention_norm, mlp_norm;
    float* query_norm = nullptr;          //!< [head_dim], or [query_size] if all heads are normalised as one row
    float* key_norm = nullptr;            //!< [head_dim], or [kv_size]
    float* sinks = nullptr;               //!< [n_heads] attention sinks
    float* attention_out_norm = nullptr;  //!< [hidden_size]
    float* mlp_out_norm = nullptr;        //!< [hidden_size]
    linear_type query_key_value, attention_out;
    linear_type gate, up;  //!< up's rows follow gate's, in matrix and bias
    linear_type down;
    linear_type router;  //!< of a mixture; gate, up and down are then the shared expert's, if there is one
    std::vector<expert_type> experts;    //!< [mixture.experts] of a mixture
    recurrent_block_weights recurrence;  //!< of a recurrent layer, whose projections are query_key_value and
                                         //!< attention_out
  };

  detail::array_pieces<NumberT> matrices;
  detail::array_pieces<float> vectors;
  NumberT* embedding = nullptr;  //!< [vocab_size][hidden_size]; the head's matrix if tied; null if the file has none
  std::vector<layer_type> layers;
  norm_type final_norm;
  linear_type head;

  std::size_t bytes() const { return matrices.bytes() + vectors.bytes(); }

  //! Allocates memory for the weights of a model, or of a part of it, which the caller fills. `matrices` begins with
  //! the matrix of the head, `vectors` with the first layer's attention_norm, if the model has one.
  static model_weights of_shape(const model_config& config) { return of_shape(config, detail::whole_rows{config}); }
  template <class PartT>
  static model_weights of_shape(const model_config& config, const PartT& part) {
    detail::require_on_device(config);
    model_weights weights;
    weights.layers.resize(static_cast<std::size_t>(config.n_layers));
    weights.place(config, part);
    weights.matrices.allocate();
    weights.vectors.allocate();
    weights.place(config, part);
    return weights;
  }

  static model_weights load(const model_config& config, espalier::tensor_source& file) {
    model_weights weights;
    weights.read(config, file, detail::whole_rows{config});
    return weights;
  }

  //! Reads the weights of a part of a model: PartT is detail::whole_rows or espalier::detail::rank_rows. Returns the
  //! number of weights of matrices that were read from the file.
  template <class PartT>
  std::int64_t read(const model_config& config, espalier::tensor_source& file, const PartT& part) {
    detail::weight_upload<NumberT, model_weights, PartT> to{*this, part};
    espalier::detail::model_tensors(config, file, to, true).read();
    *this = of_shape(config, part);
    espalier::detail::model_tensors(config, file, to, false).read();
    to.upload.flush();
    return to.weights_taken;
  }

 private:
  // Gives each array its memory; while there is none yet, counts how much all arrays need.
  template <class PartT>
  void place(const model_config& c, const PartT& part) {
    using espalier::detail::model_part;
    const auto size = [](int n) { return static_cast<std::size_t>(n); };
    const auto matrix = [&](int outputs, int inputs) { return matrices.take(size(outputs) * size(inputs)); };
    const auto vector = [&](bool there, int n) { return there ? vectors.take(size(n)) : nullptr; };
    const auto norm = [&](bool there) {
      return norm_type{vector(there, c.hidden_size), vector(there && c.layer_norm, c.hidden_size)};
    };
    // `times` matrices of this size, one after another, and their biases.
    const auto linear = [&](espalier::detail::part_place place, bool has_bias, int times = 1) {
      const auto [outputs, inputs] = part.held(place);
      return linear_type{matrix(times * outputs, inputs), vector(has_bias, times * outputs), inputs};
    };
    // attention_out and down, whose products are added to the residual stream, have their whole bias on each rank.
    const auto back = [&](espalier::detail::part_place place, bool has_bias) {
      const auto [outputs, inputs] = part.held(place);
      return linear_type{matrix(outputs, inputs), vector(has_bias, c.hidden_size), inputs};
    };
    if (c.has_head) head = linear({model_part::head}, false);
    if (c.holds_embedding()) {
      embedding = matrix(part.held({model_part::embedding}).outputs, c.hidden_size);
    } else if (c.tied_embeddings) {
      embedding = head.matrix;
    }
    for (int i = 0; i < c.n_layers; ++i) {
      layer_type& layer = layers[size(i)];
      layer.attention_norm = norm(c.input_norms);
      const bool recurrent = c.is_recurrent(i);
      layer.query_key_value =
          linear({model_part::query_key_value, i}, recurrent ? c.recurrence.projection_bias : c.query_bias);
      layer.query_norm = vector(c.query_key_norm, c.query_norm_size());
      layer.key_norm = vector(c.query_key_norm, c.key_norm_size());
      layer.sinks = vector(c.attention_sinks, c.n_heads);
      layer.attention_out =
          back({model_part::attention_out, i}, recurrent ? c.recurrence.projection_bias : c.attention_out_bias);
      if (recurrent) {
        const recurrent_block_shape& r = c.recurrence;
        layer.recurrence = {vector(true, r.taps * r.convolved()),
                            vector(r.convolution_bias, r.convolved()),
                            vector(true, r.heads),
                            vector(true, r.heads),
                            vector(!r.is_delta(), r.heads),
                            vector(true, r.norm_size())};
      }
      layer.attention_out_norm = vector(c.output_norms, c.hidden_size);
      layer.mlp_norm = norm(c.input_norms);
      if (c.is_mixture(i)) {
        layer.router = linear({model_part::router, i}, c.mixture.biased);
        layer.experts.resize(size(c.mixture.experts));
        place_experts(c, part, i, &expert_type::gate, model_part::gate);
        place_experts(c, part, i, &expert_type::up, model_part::up);
        place_experts(c, part, i, &expert_type::down, model_part::down);
        if (c.mixture.shared_size == 0) continue;
      }
      layer.up = linear({model_part::up, i}, c.mlp_bias, c.gated_mlp ? 2 : 1);
      if (c.gated_mlp) {
        const int intermediate = part.held({model_part::up, i}).outputs;
        layer.gate = layer.up;
        if (layer.up.matrix) layer.up.matrix += size(intermediate) * size(c.hidden_size);
        if (layer.up.bias) layer.up.bias += intermediate;
      }
      layer.down = back({model_part::down, i}, c.mlp_bias);
      layer.mlp_out_norm = vector(c.output_norms, c.hidden_size);
    }
    final_norm = norm(true);
  }

  // Places one matrix of each expert of a layer, one after another, and then their biases. Biases of down are whole on
  // each rank.
  template <class PartT>
  void place_experts(const model_config& c, const PartT& part, int layer, linear_type expert_type::*which,
                     espalier::detail::model_part of) {
    const auto [outputs, inputs] = part.held({of, layer, 0});
    const int biases = of == espalier::detail::model_part::down ? c.hidden_size : outputs;
    std::vector<expert_type>& experts = layers[static_cast<std::size_t>(layer)].experts;
    const std::size_t numbers = static_cast<std::size_t>(outputs) * static_cast<std::size_t>(inputs);
    NumberT* matrix = matrices.take(experts.size() * numbers);
    float* bias = c.mixture.biased ? vectors.take(experts.size() * static_cast<std::size_t>(biases)) : nullptr;
    for (expert_type& expert : experts) {
      expert.*which = {matrix, bias, inputs};
      if (matrix) matrix += numbers;
      if (bias) bias += biases;
    }
  }
};

}  // namespace espalier::cuda
