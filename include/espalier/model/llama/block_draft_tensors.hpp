// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/block_draft_model.cpp
#pragma once

#include <cstdint>
#include <string>

#include "espalier/model/files/tensor_reader.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/llama/block_draft_config.hpp"
#include "espalier/model/llama/model_steps.hpp"
#include "espalier/model/llama/model_tensors.hpp"

namespace espalier::detail {

// Writes the mixer of a refiner, [rank][rows][rows] in the file, as [rows][rows][rank].
inline void turn_mixer(const float* from, int rank, int rows, float* to) {
  const auto cells = static_cast<std::ptrdiff_t>(rows) * rows;
  for (std::ptrdiff_t cell = 0; cell < cells; ++cell) {
    for (int i = 0; i < rank; ++i)
      to[cell * rank + i] = from[i * cells + cell];
  }
}

// A reader of the tensors of a block draft. It gives them to the object `weights`, which has
//   expect_rows(place, first, rows, type)  gets the type in which the file stores rows first, first + 1, ... of a
//                                          matrix
//   set_row(place, row, weights)           gets row `row` of a matrix, a weight_row; rows of one matrix come in order
//   set_vector(place, values, n)           gets the scale of a norm, or another part that is no matrix
// With only_check, it reads no tensor and sets nothing, but raises an error for a tensor that the file lacks, or that
// has no place in the draft, and calls expect_rows.
template <class WeightsT>
class block_draft_tensors {
 public:
  block_draft_tensors(const block_draft_config& config, tensor_source& file, WeightsT& weights, bool only_check)
      : c_(config),
        names_(names_of(config.layout)),
        file_(file),
        maker_(config.is_gguf() ? "the metadata makes" : config.where + " makes"),
        tensors_(file, only_check, maker_.c_str()),
        weights_(weights),
        only_check_(only_check) {}

  void read() {
    const int width = c_.hidden_size;
    matrix("fc.weight", {model_part::features}, 0, width, static_cast<int>(c_.hidden_layers.size()) * width);
    norm(named("hidden_norm.weight", "enc.output_norm.weight"), {model_part::features_norm});
    if (!c_.is_dflash()) {
      norm("pending_norm.weight", {model_part::pending_norm});
      matrix("pending_proj.weight", {model_part::pending}, 0, width, width);
      matrix("mask_embed", {model_part::masked}, 0, c_.block_length, width);
    }
    if (c_.has_embedding) matrix(of_model(names_.embedding), {model_part::embedding}, 0, c_.vocab_size, width);
    if (c_.has_head) {
      const char* head = c_.tied_embeddings ? names_.embedding : names_.head;
      matrix(of_model(head), {model_part::head}, 0, c_.columns(), width);
    }
    for (int i = 0; i < c_.n_layers; ++i)
      read_layer(names_.layer + std::to_string(i) + ".", i);
    norm(of_model(names_.final_norm), {model_part::final_norm});
    read_markov_head();
    if (c_.selector_rank > 0) {
      const int rank = c_.selector_rank;
      matrix(codebook("predecessor"), {model_part::selector_before}, 0, c_.vocab_size, rank);
      matrix(codebook("successor"), {model_part::selector_after}, 0, c_.vocab_size, rank);
      matrix(named("candidate_selector.hidden_projection.weight", "selector_hidden.weight"),
             {model_part::selector_state}, 0, rank, width);
    }
    if (c_.refiner_rank > 0) read_refiner();
    // Read by read_draft_tokens(), and divisors of the angles, which are read with the metadata.
    const auto is_idle = [&](const std::string& name) {
      return name == "d2t" || name == "t2d" || (c_.is_gguf() && name == "rope_freqs.weight");
    };
    if (only_check_) tensors_.require_all_asked_for(is_idle);
  }

 private:
  std::string named(const char* in_folder, const char* in_gguf) const { return c_.is_gguf() ? in_gguf : in_folder; }
  static std::string of_model(const char* name) { return std::string(name) + ".weight"; }

  // Returns the name of a selector's table. In folders it may end with .weight, as it does in GGUF files.
  std::string codebook(const char* which) const {
    if (c_.is_gguf()) return std::string("selector_") + which + ".weight";
    const std::string name = std::string("candidate_selector.") + which + "_codebook";
    return file_.find(name + ".weight") ? name + ".weight" : name;
  }

  void read_layer(const std::string& base, int i) {
    const int width = c_.hidden_size;
    const auto of_layer = [&](const char* name) { return base + of_model(name); };
    norm(of_layer(names_.attention_norm), {model_part::attention_norm, i});
    matrix(of_layer(names_.query), {model_part::query, i}, 0, c_.query_size(), width);
    matrix(of_layer(names_.key), {model_part::key_value, i}, 0, c_.kv_size(), width);
    matrix(of_layer(names_.value), {model_part::key_value, i}, c_.kv_size(), c_.kv_size(), width);
    if (c_.query_key_norm) {
      norm(of_layer(names_.query_norm), {model_part::query_norm, i}, c_.head_dim);
      norm(of_layer(names_.key_norm), {model_part::key_norm, i}, c_.head_dim);
    }
    matrix(of_layer(names_.attention_out), {model_part::attention_out, i}, 0, width, c_.query_size());
    norm(of_layer(names_.mlp_norm), {model_part::mlp_norm, i});
    matrix(of_layer(names_.gate), {model_part::gate, i}, 0, c_.intermediate_size, width);
    matrix(of_layer(names_.up), {model_part::up, i}, 0, c_.intermediate_size, width);
    matrix(of_layer(names_.down), {model_part::down, i}, 0, width, c_.intermediate_size);
    if (c_.conv_taps == 0) return;
    convolution(base + named("attention_conv.", "attn_conv_"), {model_part::attention_taps, i},
                {model_part::attention_factors, i});
    convolution(base + named("mlp_conv.", "ffn_conv_"), {model_part::mlp_taps, i}, {model_part::mlp_factors, i});
  }

  void convolution(const std::string& base, part_place taps, part_place factors) {
    const auto extent = [](int size) { return static_cast<std::uint64_t>(size); };
    tensors_.numbers(
        base + named("base_kernel", "base"), {2, extent(c_.conv_taps), extent(c_.hidden_size)},
        [&](const float* values) { weights_.set_vector(taps, values, 2 * c_.conv_taps * c_.hidden_size); });
    matrix(base + named("kernel_projection.weight", "proj.weight"), factors, 0, c_.conv_factors(), c_.hidden_size);
  }

  void read_markov_head() {
    const std::string base = named("markov_head.", "");
    if (c_.markov_rank > 0) {
      const int rank = c_.markov_rank, gates = c_.markov_gates();
      matrix(base + "markov_w1.weight", {model_part::markov_tokens}, 0, c_.vocab_size, rank);
      matrix(base + "markov_w2.weight", {model_part::markov_out}, 0, c_.columns(), rank);
      const std::string gate = base + (gates == rank ? "gate_proj." : "joint_proj.");
      if (gates > 0) {
        matrix(gate + "weight", {model_part::markov_gate}, 0, gates, c_.hidden_size + (gates == rank ? 1 : 2) * rank);
        norm(gate + "bias", {model_part::markov_gate_bias}, gates);
      }
    }
    if (c_.confidence_inputs == 0) return;
    const std::string confidence = named("confidence_head.proj.", "conf_proj.");
    matrix(confidence + "weight", {model_part::unused}, 0, 1, c_.confidence_inputs);
    if (!c_.is_gguf() || file_.find(confidence + "bias")) norm(confidence + "bias", {model_part::unused}, 1);
  }

  void read_refiner() {
    const int rank = c_.refiner_rank, inner = c_.refiner_inner, rows = c_.rows_of(c_.block_length);
    const auto part = [&](const char* name, model_part place, int outputs, int inputs) {
      matrix("refiner_head." + of_model(name), {place}, 0, outputs, inputs);
    };
    part("token_embed", model_part::refiner_tokens, c_.vocab_size, rank);
    part("down_h", model_part::refiner_state, rank, c_.hidden_size);
    part("down_g", model_part::refiner_mean, rank, c_.hidden_size);
    part("in_proj", model_part::refiner_in, rank, 3 * rank);
    const auto extent = [](int size) { return static_cast<std::uint64_t>(size); };
    tensors_.numbers("refiner_head.mix_l", {extent(rank), extent(rows), extent(rows)}, [&](const float* values) {
      weights_.set_vector({model_part::refiner_mixer}, values, rank * rows * rows);
    });
    part("mlp_gate", model_part::refiner_gate, inner, rank);
    part("mlp_up", model_part::refiner_up, inner, rank);
    part("mlp_down", model_part::refiner_down, rank, inner);
    part("readout", model_part::refiner_out, c_.columns(), rank);
  }

  void matrix(const std::string& name, part_place place, int first, int rows, int columns) {
    const weight_type type = tensors_.matrix(name, rows, columns, [&](int row, const weight_row& weights) {
      weights_.set_row(place, first + row, weights);
    });
    if (only_check_) weights_.expect_rows(place, first, rows, type);
  }
  void norm(const std::string& name, part_place place) { norm(name, place, c_.hidden_size); }
  void norm(const std::string& name, part_place place, int n) {
    tensors_.vector(name, n, [&](const float* values) { weights_.set_vector(place, values, n); });
  }

  const block_draft_config& c_;
  const tensor_names& names_;
  const tensor_source& file_;
  std::string maker_;  // what prescribes the shapes, in messages
  tensor_reader tensors_;
  WeightsT& weights_;
  bool only_check_;
};

}  // namespace espalier::detail
