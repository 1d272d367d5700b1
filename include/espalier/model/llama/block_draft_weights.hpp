// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/block_draft_model.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/files/weight_row.hpp"
#include "espalier/model/files/weight_storage.hpp"
#include "espalier/model/files/weight_type.hpp"
#include "espalier/model/llama/block_draft_config.hpp"
#include "espalier/model/llama/block_draft_tensors.hpp"
#include "espalier/model/llama/draft_tokens.hpp"
#include "espalier/model/llama/model_steps.hpp"
#include "espalier/model/llama/model_tensors.hpp"
#include "espalier/model/llama/model_weights.hpp"
#include "espalier/model/llama/weight_matrix.hpp"

namespace espalier {

//! The weights of a block draft in F32, all in one block of memory, and its output matrix, `head`, which is the
//! target's unless the file has one. Key and value projections are one matrix, keys first.
//!
//! Complexity  load: peak memory is the weights as held and a buffer of 128 KiB or one row
//! Errors      model_error for a tensor that is missing, that has another shape or dtype than the config asks for, or
//!             that has no place in the draft
struct block_draft_weights {
  using linear_type = model_weights::linear_type;
  using norm_type = model_weights::norm_type;
  //! A layer of a transformer, but with two matrices in the place of query_key_value, and with convolutions.
  struct layer_type : model_weights::layer_type {
    linear_type query, key_value;
    linear_type attention_factors, mlp_factors;  //!< [conv_factors][hidden_size]
    float* attention_taps = nullptr;             //!< [2][conv_taps][hidden_size]: before and after attention
    float* mlp_taps = nullptr;
  };

  detail::float_block block;
  linear_type features;  //!< [hidden_size][layers read * hidden_size]
  linear_type pending;   //!< [hidden_size][hidden_size]; DFlash has neither this, nor pending_norm, nor masked
  norm_type features_norm, pending_norm, final_norm;
  float* masked = nullptr;  //!< [block_length][hidden_size], added to the rows of tokens that are to be drafted
  std::vector<layer_type> layers;
  weight_rows embedding;           //!< [vocab_size][hidden_size]; empty: the target's is used
  linear_type head;                //!< [columns][hidden_size]
  std::vector<token_id> tokens{};  //!< [columns] the token of each column of the logits; empty: columns are tokens

  //! The parts of a Markov head. Gates and a recurrent unit read the row's state by gate_of_state, and by gate_of_path
  //! the numbers of the path: the embedding of the token before, or the unit's last state and that embedding.
  struct {
    float* tokens = nullptr;        //!< [vocab_size][markov_rank] the embeddings of the tokens before
    float* gate_of_path = nullptr;  //!< [markov_gates][markov_rank or 2 * markov_rank]
    float* gate_bias = nullptr;     //!< [markov_gates]
    weight_matrix gate_of_state;    //!< [markov_gates][hidden_size]
    weight_matrix out;              //!< [columns][markov_rank]
  } markov;

  //! The parts of a selector: it scores a candidate by the product, number by number, of the three vectors that the
  //! token before, the row's state and the candidate have.
  struct {
    float* before = nullptr;  //!< [vocab_size][selector_rank]
    float* after = nullptr;   //!< [vocab_size][selector_rank]
    weight_matrix of_state;   //!< [selector_rank][hidden_size]
  } selector;

  //! The parts of a refiner. Each row of a block has a vector: the product of `in` with the products of of_state with
  //! its state and of of_mean with the mean of all states, and with the embedding of the token before the row. `mixer`
  //! adds to the vector multiples of this and of earlier rows' vectors, number by number; an MLP adds to that; and the
  //! product of `out` with the sum is what the row's logits have added.
  struct refiner_type {
    float* tokens = nullptr;          //!< [vocab_size][refiner_rank] the embeddings of the tokens before
    float* mixer = nullptr;           //!< [rows][rows][refiner_rank]: by row, then by the row whose vector is added
    weight_matrix of_state, of_mean;  //!< [refiner_rank][hidden_size]
    //! The columns of `in`, [refiner_rank][3 * refiner_rank], by what they read.
    weight_matrix in_state, in_mean, in_token;
    weight_matrix gate, up;  //!< [refiner_inner][refiner_rank]
    weight_matrix down;      //!< [refiner_rank][refiner_inner]
    weight_matrix out;       //!< [columns][refiner_rank]

    //! Calls visit(matrix) for each matrix.
    template <class VisitT>
    void each_matrix(const VisitT& visit) {
      for (weight_matrix* matrix : {&of_state, &of_mean, &in_state, &in_mean, &in_token, &gate, &up, &down, &out})
        visit(*matrix);
    }
  };
  refiner_type refiner;

  std::size_t bytes() const { return block.used() * sizeof(float); }

  static block_draft_weights load(const block_draft_config& config, tensor_source& file) {
    block_draft_weights weights;
    weights.layers.resize(static_cast<std::size_t>(config.n_layers));
    weights.shape(config);
    const detail::whole_model all{config};
    loader to{{weights, all, weight_storage::f32}, config};
    // Shapes first: a config that claims too much is refused before memory is taken for it.
    detail::block_draft_tensors(config, file, to, true).read();
    weights.place(config);
    weights.block = detail::float_block(weights.block.used(), true);
    weights.place(config);
    detail::block_draft_tensors(config, file, to, false).read();
    if (config.is_dflash()) weights.tokens = detail::read_draft_tokens(config, file);
    return weights;
  }

 private:
  void shape(const block_draft_config& c) {
    const auto matrix = [&](detail::part_place place) {
      const detail::matrix_size size = detail::size_of(c, place);
      detail::linear_at(*this, place).matrix = weight_matrix(size.outputs, size.inputs);
    };
    features.matrix = weight_matrix(c.hidden_size, static_cast<int>(c.hidden_layers.size()) * c.hidden_size);
    if (c.markov_gates() > 0) markov.gate_of_state = weight_matrix(c.markov_gates(), c.hidden_size);
    if (c.markov_rank > 0) markov.out = weight_matrix(c.columns(), c.markov_rank);
    if (c.selector_rank > 0) selector.of_state = weight_matrix(c.selector_rank, c.hidden_size);
    if (const int rank = c.refiner_rank, inner = c.refiner_inner; rank > 0) {
      refiner.of_state = refiner.of_mean = weight_matrix(rank, c.hidden_size);
      refiner.in_state = refiner.in_mean = refiner.in_token = weight_matrix(rank, rank);
      refiner.gate = refiner.up = weight_matrix(inner, rank);
      refiner.down = weight_matrix(rank, inner);
      refiner.out = weight_matrix(c.columns(), rank);
    }
    if (c.has_embedding) embedding = weight_rows(c.vocab_size, c.hidden_size);
    if (c.has_head) head.matrix = weight_matrix(c.columns(), c.hidden_size);
    if (!c.is_dflash()) matrix({detail::model_part::pending});
    for (int i = 0; i < c.n_layers; ++i) {
      using enum detail::model_part;
      for (const detail::model_part part : {query, key_value, attention_out, gate, up, down})
        matrix({part, i});
      if (c.conv_taps > 0) matrix({attention_factors, i}), matrix({mlp_factors, i});
    }
  }

  // Gives every part its place in the block, or only counts the floats if the block has no memory yet.
  void place(const block_draft_config& c) {
    const auto norm = [&] { return norm_type{block.take(static_cast<std::size_t>(c.hidden_size))}; };
    const auto place = [&](linear_type& part) { part.matrix.place(block.take(part.matrix.storage_floats())); };
    const auto floats = [&](int rows, int columns) {
      return block.take(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
    };
    place(features);
    features_norm = norm();
    if (!c.is_dflash()) {
      pending_norm = norm();
      place(pending);
      masked = floats(c.block_length, c.hidden_size);
    }
    embedding.place(block.take(embedding.storage_floats()));
    if (c.has_head) place(head);
    for (layer_type& layer : layers) {
      layer.attention_norm = norm();
      layer.mlp_norm = norm();
      for (float** of_heads : {&layer.query_norm, &layer.key_norm})
        *of_heads = c.query_key_norm ? block.take(static_cast<std::size_t>(c.head_dim)) : nullptr;
      for (linear_type* part :
           {&layer.query, &layer.key_value, &layer.attention_out, &layer.up, &layer.gate, &layer.down})
        place(*part);
      if (c.conv_taps == 0) continue;
      layer.attention_taps = floats(2 * c.conv_taps, c.hidden_size);
      layer.mlp_taps = floats(2 * c.conv_taps, c.hidden_size);
      place(layer.attention_factors), place(layer.mlp_factors);
    }
    final_norm = norm();
    if (c.selector_rank > 0) {
      selector.before = floats(c.vocab_size, c.selector_rank);
      selector.after = floats(c.vocab_size, c.selector_rank);
      selector.of_state.place(block.take(selector.of_state.storage_floats()));
    }
    if (c.refiner_rank > 0) {
      const int rows = c.rows_of(c.block_length);
      refiner.tokens = floats(c.vocab_size, c.refiner_rank);
      refiner.mixer = floats(rows * rows, c.refiner_rank);
      refiner.each_matrix([&](weight_matrix& matrix) { matrix.place(block.take(matrix.storage_floats())); });
    }
    if (c.markov_rank == 0) return;
    markov.tokens = floats(c.vocab_size, c.markov_rank);
    markov.out.place(block.take(markov.out.storage_floats()));
    if (c.markov_gates() == 0) return;
    markov.gate_of_path = floats(c.markov_gates(), c.path_inputs());
    markov.gate_bias = floats(c.markov_gates(), 1);
    markov.gate_of_state.place(block.take(markov.gate_of_state.storage_floats()));
  }

  struct loader : detail::weight_loader<block_draft_weights, detail::whole_model> {
    using base = detail::weight_loader<block_draft_weights, detail::whole_model>;

    const block_draft_config& config;
    std::vector<float> row_values{};

    static bool is_own(detail::model_part part) {
      return part == detail::model_part::masked || part >= detail::model_part::markov_tokens;
    }
    void expect_rows(detail::part_place place, int first, int rows, weight_type type) {
      if (!is_own(place.part)) base::expect_rows(place, first, rows, type);
    }
    void set_row(detail::part_place place, int row, const weight_row& read) {
      using enum detail::model_part;
      const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(row) * read.n;
      if (!is_own(place.part)) return base::set_row(place, row, read);
      if (place.part == masked) read.decode(weights.masked + first);
      if (place.part == selector_before) read.decode(weights.selector.before + first);
      if (place.part == selector_after) read.decode(weights.selector.after + first);
      if (place.part == selector_state) weights.selector.of_state.set_row(row, read);
      if (place.part == markov_tokens) read.decode(weights.markov.tokens + first);
      if (place.part == markov_out) weights.markov.out.set_row(row, read);
      if (place.part == markov_gate) set_gate(row, read);
      if (place.part == refiner_tokens) read.decode(weights.refiner.tokens + first);
      if (place.part == refiner_state) weights.refiner.of_state.set_row(row, read);
      if (place.part == refiner_mean) weights.refiner.of_mean.set_row(row, read);
      if (place.part == refiner_gate) weights.refiner.gate.set_row(row, read);
      if (place.part == refiner_up) weights.refiner.up.set_row(row, read);
      if (place.part == refiner_down) weights.refiner.down.set_row(row, read);
      if (place.part == refiner_out) weights.refiner.out.set_row(row, read);
      if (place.part == refiner_in) {
        decode(read);
        const int rank = config.refiner_rank;
        set_part(weights.refiner.in_state, row, 0, rank), set_part(weights.refiner.in_mean, row, rank, rank);
        set_part(weights.refiner.in_token, row, 2 * rank, rank);
      }
    }
    void set_vector(detail::part_place place, const float* from, int n) {
      if (!is_own(place.part)) return base::set_vector(place, from, n);
      if (place.part == detail::model_part::markov_gate_bias) std::copy_n(from, n, weights.markov.gate_bias);
      if (place.part == detail::model_part::refiner_mixer)
        detail::turn_mixer(from, config.refiner_rank, config.rows_of(config.block_length), weights.refiner.mixer);
    }
    void decode(const weight_row& read) {
      row_values.resize(static_cast<std::size_t>(read.n));
      read.decode(row_values.data());
    }
    // Stores n numbers of the decoded row, from number `first` on, as a row of a matrix.
    void set_part(weight_matrix& matrix, int row, int first, int n) {
      matrix.set_row(row, weight_row::of(row_values.data() + first, n));
    }
    // Divides a row of the gates' matrix.
    void set_gate(int row, const weight_row& read) {
      decode(read);
      const int n = config.path_inputs();
      const auto [of_path, of_state] = config.gate_columns();
      std::copy_n(row_values.data() + of_path, n, weights.markov.gate_of_path + static_cast<std::ptrdiff_t>(row) * n);
      set_part(weights.markov.gate_of_state, row, of_state, config.hidden_size);
    }
  };
};

}  // namespace espalier
