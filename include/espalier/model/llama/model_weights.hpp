// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/files/rounded_row.hpp"
#include "espalier/model/files/tensor_reader.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/files/weight_row.hpp"
#include "espalier/model/files/weight_storage.hpp"
#include "espalier/model/files/weight_type.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_tensors.hpp"
#include "espalier/model/llama/recurrent_block_shape.hpp"
#include "espalier/model/llama/weight_matrix.hpp"

namespace espalier {

//! Rows of weights of one type, to be looked up and not multiplied: an embedding. The caller owns the storage.
class weight_rows {
 public:
  weight_rows() = default;
  weight_rows(int rows, int inputs) : rows_(rows), inputs_(inputs) {}

  //! Sets the type that all rows will have.
  void expect_rows(int, int, weight_type type) { type_ = type; }

  //! Floats of storage that the rows need.
  std::size_t storage_floats() const { return static_cast<std::size_t>(rows_) * (row_floats() + n_scales()); }

  //! Sets the storage; null: there is none yet.
  void place(float* storage) { data_ = storage; }

  int rows() const { return rows_; }
  int inputs() const { return inputs_; }

  //! Stores a row.
  //!
  //! Pre         the row is of the type that expect_rows() was given
  void set_row(int row, const weight_row& values) {
    float* to = at(row);
    std::copy_n(&values.scale, n_scales(), to);
    std::memcpy(to + n_scales(), values.bytes.data(), values.bytes.size());
  }

  weight_row row(int row) const {
    const float* from = at(row);
    const std::span bytes(reinterpret_cast<const std::byte*>(from + n_scales()), row_bytes(type_, inputs_));
    return {type_, bytes, inputs_, n_scales() > 0 ? *from : 1.0F};
  }

 private:
  // Number of scales that stand in front of a row.
  std::size_t n_scales() const { return type_ == weight_type::i8_rows ? 1 : 0; }
  std::size_t row_floats() const { return (row_bytes(type_, inputs_) + sizeof(float) - 1) / sizeof(float); }
  float* at(int row) const { return data_ + static_cast<std::size_t>(row) * (row_floats() + n_scales()); }

  int rows_ = 0;
  int inputs_ = 0;
  weight_type type_ = weight_type::f32;
  float* data_ = nullptr;
};

namespace detail {

// The whole model, as the PartT of a weight_loader. A PartT says which part of each matrix is loaded:
//   held(place) -> matrix_size                   its outputs and inputs in memory
//   n_biases(place) -> int                       number of its biases in memory
//   own_row(place, row) -> int                   the row's number in memory; -1 if it is not loaded
//   own_output(place, row) -> int                the number in memory of the bias of an output; -1 if it is not loaded
//   is_cut(place) -> bool                        whether all rows are loaded, but only inputs_of(place) of each
//   inputs_of(place)                             begin and end of these inputs
//   inputs_in_file(place) -> int                 number of inputs in the file
//   inputs_to_read(place, type) -> column_range  the inputs that are read from the file
//   numbers_of(place, n) -> column_range         which of the n numbers of a vector are loaded
struct whole_model {
  const model_config& config;

  matrix_size held(part_place place) const { return held_size_of(config, place); }
  int n_biases(part_place place) const { return held(place).outputs; }
  int own_row(part_place place, int row) const { return held_row_of(config, place, row); }
  int own_output(part_place, int row) const { return row; }
  bool is_cut(part_place) const { return false; }
  column_range inputs_of(part_place place) const { return {0, inputs_in_file(place)}; }
  int inputs_in_file(part_place place) const { return held(place).inputs; }
  column_range inputs_to_read(part_place place, weight_type) const { return inputs_of(place); }
  column_range numbers_of(part_place, int n) const { return {0, n}; }
};

// The receiver of the tensors that model_tensors or block_draft_tensors reads. It stores in `weights` the part of each
// matrix that `part` selects.
template <class WeightsT, class PartT>
struct weight_loader {
  WeightsT& weights;
  const PartT& part;
  weight_storage storage;
  rounded_row round{};
  std::vector<float> values{};
  std::int64_t weights_taken = 0;

  bool wants(part_place place, int row) const { return part.own_row(place, row) >= 0; }
  column_range inputs(part_place place, weight_type type) const { return part.inputs_to_read(place, type); }

  // Calls use() with the weight_matrix or the weight_rows for `place`.
  template <class UseT>
  void at(part_place place, UseT&& use) {
    if constexpr (requires { weights.embedding; }) {
      if (is_looked_up(place)) return use(weights.embedding);
    }
    use(linear_at(weights, place).matrix);
  }

  void expect_rows(part_place place, int first, int n, weight_type type) {
    const weight_type held = type_of(place, held_type_of(place, type));
    at(place, [&](auto& to) {
      for (int row = first; row < first + n; ++row) {
        if (const int own = part.own_row(place, row); own >= 0) to.expect_rows(own, 1, held);
      }
    });
  }

  void set_row(part_place place, int row, const weight_row& in_file) {
    weights_taken += in_file.n;
    const weight_type type = held_type_of(place, in_file.type);
    const weight_row read = type == in_file.type ? in_file : round(in_file, type);
    const int own = part.own_row(place, row), first = inputs(place, in_file.type).begin;
    at(place, [&](auto& to) { to.set_row(own, part.is_cut(place) ? cut(place, read, first) : read); });
  }

  void set_vector(part_place place, const float* from, int n) {
    float* recurrent = weights.layers.empty() ? nullptr : recurrent_at(weights, place);
    const column_range own = part.numbers_of(place, n);
    std::copy(from + own.begin, from + own.end, recurrent ? recurrent : scale_at(weights, place));
  }

  void set_bias(part_place place, int first, const float* from, int n) {
    float* to = bias_at(weights, place);
    for (int i = 0; i < n; ++i) {
      const int own = is_stream_norm(place.part) ? first + i : part.own_output(place, first + i);
      if (own >= 0) to[own] = from[i];
    }
  }

 private:
  // Returns whether the rows of a matrix are looked up and not multiplied: the rows of an embedding that is not tied.
  bool is_looked_up(part_place place) const {
    if constexpr (requires { weights.embedding; })
      return place.part == model_part::embedding && weights.embedding.inputs() > 0;
    return false;
  }

  // Returns the type in which whole rows of a type are held. Routers keep their type, since rounding would make rows
  // choose other experts. With i8_rows, rows that are only looked up keep their type, too.
  weight_type held_type_of(part_place place, weight_type type) const {
    const bool stays = place.part == model_part::router || (storage == weight_storage::i8_rows && is_looked_up(place));
    return stays ? type : held_type(type, part.inputs_in_file(place), storage);
  }

  // Returns the type in which the part's inputs of a row are held: floats if they are not whole blocks of `held`.
  weight_type type_of(part_place place, weight_type held) const {
    if (!part.is_cut(place)) return held;
    const int block = block_weights(held);
    const column_range own = inputs_of(place);
    const bool whole = own.begin % block == 0 && (own.end % block == 0 || own.end == part.inputs_in_file(place));
    return whole ? held : weight_type::f32;
  }

  // Returns the part's inputs of a row. `row` begins with input number `first` of the matrix.
  weight_row cut(part_place place, const weight_row& row, int first) {
    const column_range own = inputs_of(place);
    const int n = own.end - own.begin;
    if (n == 0) return {type_of(place, row.type), {}, 0, row.scale};
    if (type_of(place, row.type) == row.type) {
      const std::size_t begin = row_bytes(row.type, own.begin - first), end = row_bytes(row.type, own.end - first);
      return {row.type, row.bytes.subspan(begin, end - begin), n, row.scale};
    }
    values.resize(static_cast<std::size_t>(row.n));
    row.decode(values.data());
    return weight_row::of(values.data() + (own.begin - first), n);
  }

  column_range inputs_of(part_place place) const {
    const auto own = part.inputs_of(place);
    return {own.begin, own.end};
  }
};

}  // namespace detail

//! The weights of a transformer, all in one block of memory: matrices as their file stores them, or as `storage` says,
//! and all else in F32.
//!
//! Query, key and value projections are one matrix, rows in that order. A tied embedding is held once, as the output
//! projection, unless that has the rows of some tokens alone. Parts that a model does not have are null or have 0
//! outputs.
//!
//! Complexity  load: peak memory is the weights as held and a buffer of 128 KiB or one row; for a folder
//!             of gpt-oss also one matrix of an expert
//! Errors      model_error for a tensor that is missing, that has another shape or dtype than the config asks for, or
//!             that has no place in the model; option_error for weight_storage::fastest
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
  //! The matrices of one expert of a mixture.
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
    linear_type query_key_value, attention_out, gate, up, down;
    linear_type router;  //!< of a mixture; gate, up and down are then the shared expert's, if there is one
    std::vector<expert_type> experts;    //!< [mixture.experts] of a mixture
    recurrent_block_weights recurrence;  //!< of a recurrent layer, whose projections are query_key_value and
                                         //!< attention_out
  };

  detail::float_block block;
  weight_rows embedding;  //!< [vocab_size][hidden_size]; empty if it is tied, or another model's is used
  std::vector<layer_type> layers;
  norm_type final_norm;
  linear_type head;  //!< outputs: config.columns()

  std::size_t bytes() const { return block.used() * sizeof(float); }

  //! Writes the embedding of a token, [hidden_size].
  void embed(token_id token, float* to) const {
    if (embedding.rows() > 0) {
      embedding.row(token).decode(to);
    } else {
      head.matrix.get_row(token, to);
    }
  }

  //! The number of weights of matrices that load took from the file.
  std::int64_t weights_taken() const { return weights_taken_; }

  static model_weights load(const model_config& config, tensor_source& file,
                            weight_storage storage = weight_storage::as_stored) {
    return load(config, file, storage, detail::whole_model{config});
  }

  //! Loads a part of the model, such as detail::rank_rows: of each matrix either some outputs, numbered from 0, or all
  //! outputs with some of the inputs.
  template <class PartT>
  static model_weights load(const model_config& config, tensor_source& file, weight_storage storage,
                            const PartT& part) {
    if (storage == weight_storage::fastest)
      raise<option_error>("option weights is fastest, which only llama_backend::load() measures: name another form.");
    model_weights weights;
    weights.layers.resize(static_cast<std::size_t>(config.n_layers));
    weights.shape(config, part);
    detail::weight_loader<model_weights, PartT> to{weights, part, storage};
    // Shapes first: a config that claims too much is refused before memory is taken for it.
    detail::model_tensors(config, file, to, true).read();
    weights.place(config, part);
    weights.block = detail::float_block(weights.block.used(), true);
    weights.place(config, part);
    detail::model_tensors(config, file, to, false).read();
    weights.weights_taken_ = to.weights_taken;
    return weights;
  }

 private:
  template <class PartT>
  void shape(const model_config& c, const PartT& part) {
    const auto matrix = [&](detail::part_place place) {
      const detail::matrix_size size = part.held(place);
      detail::linear_at(*this, place).matrix = weight_matrix(size.outputs, size.inputs);
    };
    const detail::matrix_size size = part.held({detail::model_part::embedding});
    if (c.holds_embedding()) embedding = weight_rows(size.outputs, size.inputs);
    for (int i = 0; i < c.n_layers; ++i) {
      using enum detail::model_part;
      for (const detail::model_part each : {query_key_value, attention_out})
        matrix({each, i});
      if (c.is_mixture(i))
        layers[static_cast<std::size_t>(i)].experts.resize(static_cast<std::size_t>(c.mixture.experts));
      each_of_mlp(c, i, matrix);
    }
    if (c.has_head) matrix({detail::model_part::head});
  }

  // Calls use(place) for each matrix of the MLP of a layer, or of its mixture of experts.
  template <class UseT>
  static void each_of_mlp(const model_config& c, int layer, const UseT& use) {
    using enum detail::model_part;
    const auto of_expert = [&](int expert) {
      use(detail::part_place{up, layer, expert});
      if (c.gated_mlp) use(detail::part_place{gate, layer, expert});
      use(detail::part_place{down, layer, expert});
    };
    if (!c.is_mixture(layer)) return of_expert(-1);
    use(detail::part_place{router, layer});
    for (int expert = c.mixture.shared_size > 0 ? -1 : 0; expert < c.mixture.experts; ++expert)
      of_expert(expert);
  }

  // Gives every part its place in the block, or only counts the floats if the block has no memory yet.
  template <class PartT>
  void place(const model_config& c, const PartT& part) {
    const auto vector = [&](bool there, int n) {
      return there && n > 0 ? block.take(static_cast<std::size_t>(n)) : nullptr;
    };
    const auto matrix = [&](detail::part_place where, bool has_bias) {
      linear_type& linear = detail::linear_at(*this, where);
      linear.matrix.place(block.take(linear.matrix.storage_floats()));
      linear.bias = vector(has_bias, part.n_biases(where));
    };
    const auto norm = [&](bool there) {
      return norm_type{vector(there, c.hidden_size), vector(there && c.layer_norm, c.hidden_size)};
    };
    embedding.place(block.take(embedding.storage_floats()));
    for (int i = 0; i < c.n_layers; ++i) {
      using enum detail::model_part;
      layer_type& layer = layers[static_cast<std::size_t>(i)];
      const bool recurrent = c.is_recurrent(i);
      layer.attention_norm = norm(c.input_norms);
      matrix({query_key_value, i}, recurrent ? c.recurrence.projection_bias : c.query_bias);
      layer.query_norm = vector(c.query_key_norm, c.query_norm_size());
      layer.key_norm = vector(c.query_key_norm, c.key_norm_size());
      layer.sinks = vector(c.attention_sinks, c.n_heads);
      matrix({attention_out, i}, recurrent ? c.recurrence.projection_bias : c.attention_out_bias);
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
      each_of_mlp(c, i, [&](detail::part_place of) { matrix(of, c.is_mixture(i) ? c.mixture.biased : c.mlp_bias); });
      layer.mlp_out_norm = vector(c.output_norms, c.hidden_size);
    }
    final_norm = norm(true);
    matrix({detail::model_part::head}, false);
  }

  std::int64_t weights_taken_ = 0;
};

}  // namespace espalier
