// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/block_draft_model.cpp
#pragma once

#include <string>

#include "espalier/model/files/safetensors_file.hpp"
#include "espalier/model/files/tensor_reader.hpp"
#include "espalier/model/llama/block_draft_config.hpp"
#include "espalier/model/llama/model_steps.hpp"
#include "espalier/model/llama/model_tensors.hpp"

namespace espalier::detail {

// A reader of the tensors of a block draft. It gives them to the object `weights`, which has
//   expect_rows(place, first, rows, type)  gets the type in which the file stores rows first, first + 1, ... of a
//                                          matrix
//   set_row(place, row, weights)           gets row `row` of a matrix, a weight_row; rows of one matrix come in order
//   set_vector(place, values, n)           gets the scale of a norm
// With only_check, it reads no tensor and sets nothing, but raises an error for a tensor that the file lacks, or that
// has no place in the draft, and calls expect_rows.
template <class WeightsT>
class block_draft_tensors {
 public:
  block_draft_tensors(const block_draft_config& config, safetensors_file& file, WeightsT& weights, bool only_check)
      : c_(config), tensors_(file, only_check), weights_(weights), only_check_(only_check) {}

  void read() {
    const int width = c_.hidden_size;
    matrix("fc.weight", {model_part::features}, 0, width, static_cast<int>(c_.hidden_layers.size()) * width);
    norm("hidden_norm.weight", {model_part::features_norm});
    if (!c_.is_dflash()) {
      norm("pending_norm.weight", {model_part::pending_norm});
      matrix("pending_proj.weight", {model_part::pending}, 0, width, width);
      matrix("mask_embed", {model_part::masked}, 0, c_.block_length, width);
    }
    for (int i = 0; i < c_.n_layers; ++i) {
      const std::string base = "layers." + std::to_string(i) + ".";
      const std::string attention = base + "self_attn.", mlp = base + "mlp.";
      norm(base + "input_layernorm.weight", {model_part::attention_norm, i});
      matrix(attention + "q_proj.weight", {model_part::query, i}, 0, c_.query_size(), width);
      matrix(attention + "k_proj.weight", {model_part::key_value, i}, 0, c_.kv_size(), width);
      matrix(attention + "v_proj.weight", {model_part::key_value, i}, c_.kv_size(), c_.kv_size(), width);
      if (c_.query_key_norm) {
        norm(attention + "q_norm.weight", {model_part::query_norm, i}, c_.head_dim);
        norm(attention + "k_norm.weight", {model_part::key_norm, i}, c_.head_dim);
      }
      matrix(attention + "o_proj.weight", {model_part::attention_out, i}, 0, width, c_.query_size());
      norm(base + "post_attention_layernorm.weight", {model_part::mlp_norm, i});
      matrix(mlp + "gate_proj.weight", {model_part::gate, i}, 0, c_.intermediate_size, width);
      matrix(mlp + "up_proj.weight", {model_part::up, i}, 0, c_.intermediate_size, width);
      matrix(mlp + "down_proj.weight", {model_part::down, i}, 0, width, c_.intermediate_size);
    }
    norm("norm.weight", {model_part::final_norm});
    if (c_.markov_rank > 0) {
      const int rank = c_.markov_rank, gates = c_.markov_gates();
      matrix("markov_head.markov_w1.weight", {model_part::markov_tokens}, 0, c_.vocab_size, rank);
      matrix("markov_head.markov_w2.weight", {model_part::markov_out}, 0, c_.vocab_size, rank);
      const std::string gate = gates == rank ? "markov_head.gate_proj." : "markov_head.joint_proj.";
      if (gates > 0) {
        matrix(gate + "weight", {model_part::markov_gate}, 0, gates, width + (gates == rank ? 1 : 2) * rank);
        norm(gate + "bias", {model_part::markov_gate_bias}, gates);
      }
    }
    if (c_.confidence_inputs > 0) {
      matrix("confidence_head.proj.weight", {model_part::unused}, 0, 1, c_.confidence_inputs);
      norm("confidence_head.proj.bias", {model_part::unused}, 1);
    }
    if (only_check_) tensors_.require_all_asked_for();
  }

 private:
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
  tensor_reader tensors_;
  WeightsT& weights_;
  bool only_check_;
};

}  // namespace espalier::detail
