// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/block_draft_model.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/model/llama/block_draft_config.hpp"
#include "espalier/model/llama/block_draft_weights.hpp"
#include "espalier/model/llama/elementwise.hpp"
#include "espalier/model/llama/transformer_pass.hpp"
#include "espalier/model/llama/weight_matrix.hpp"

namespace espalier::detail {

// The corrections of a block's rows by path: those of a Markov head, or of a selector. It holds, by place, the products
// of one matrix with the states of the last block's rows, which the corrections read.
class block_corrections {
 public:
  explicit block_corrections(const block_draft_config& config) : config_(config) {
    path_.resize(static_cast<std::size_t>(3 * config.markov_rank + config.markov_gates() + config.selector_rank));
  }

  // Makes room for the blocks of places 0 to n - 1.
  void make_places(int n) {
    const std::size_t rows = static_cast<std::size_t>(n) * static_cast<std::size_t>(config_.block_length);
    lengths_.resize(static_cast<std::size_t>(n), config_.block_length);
    of_states_.resize(rows * static_cast<std::size_t>(state_outputs()));
    if (config_.selector_rank == 0) return;
    n_candidates_.resize(rows, -1);
    candidates_.resize(rows * static_cast<std::size_t>(config_.selector_candidates));
  }

  // Begins a block of `length` rows.
  void begin(int place, int length) {
    lengths_[static_cast<std::size_t>(place)] = length;
    if (config_.selector_rank > 0)
      std::fill_n(n_candidates_.begin() + at(place, config_.block_length), config_.block_length, -1);
  }

  // Writes the thread's part of the products with the states of rows, the first of which is the first row of a block.
  // `next` is the matrix that is multiplied next.
  void read_states(transformer_pass& pass, int thread, const block_draft_weights& weights, int place,
                   const float* states, int rows, const weight_matrix& next) {
    if (state_outputs() == 0) return;
    pass.multiply(thread, config_.selector_rank > 0 ? weights.selector.of_state : weights.markov.gate_of_state, states,
                  rows, of_states_.data() + at(place * config_.block_length, state_outputs()), false, next);
  }

  // Corrects a row of logits, which is the row of the node's depth in `block`, the last block of this place. A node
  // below the last row has the last row's state.
  //
  // Errors: input_error for a token of the path outside the vocabulary
  void correct(transformer_pass& pass, const block_draft_weights& weights, int place, vocab_rows<float> block,
               tree_view tree, node_id node, std::span<float> row) {
    if (config_.selector_rank > 0) return select(weights, place, block, tree, node, row);
    const float* vector = markov_vector(weights, place, tree, node);
    pass.team().run([&](int thread) {
      pass.multiply(thread, weights.markov.out, vector, 1, row.data(), true, weights.markov.out);
    });
  }

 private:
  static std::ptrdiff_t at(int row, int width) { return static_cast<std::ptrdiff_t>(row) * width; }

  int state_outputs() const { return config_.selector_rank > 0 ? config_.selector_rank : config_.markov_gates(); }

  // Returns the number of the row at a depth among the rows of all places.
  int row_at(int place, int depth) const {
    return place * config_.block_length + (std::min)(depth, lengths_[static_cast<std::size_t>(place)] - 1);
  }

  token_id token_of(tree_view tree, node_id node) const {
    const token_id id = tree.token[node];
    if (id < 0 || id >= config_.vocab_size) {
      raise<input_error>("the block draft is asked for the row after token ", id, ", but the vocabulary ends at ",
                         config_.vocab_size - 1, ".");
    }
    return id;
  }

  // Turns the logits of a row's candidates into their scores after the node's token, and all others into minus
  // infinity.
  void select(const block_draft_weights& weights, int place, vocab_rows<float> block, tree_view tree, node_id node,
              std::span<float> row) {
    const int rank = config_.selector_rank, number = row_at(place, tree.depth[node]);
    const float* before = weights.selector.before + at(token_of(tree, node), rank);
    const float* state = of_states_.data() + at(number, rank);
    float* const context = path_.data();
    for (int i = 0; i < rank; ++i)
      context[i] = before[i] * state[i];
    const auto depth = static_cast<std::int32_t>(number - place * config_.block_length);
    const std::span<const float> logits = block.row(depth);
    std::fill(row.begin(), row.end(), -std::numeric_limits<float>::infinity());
    for (const token_id candidate : candidates_of(number, logits)) {
      const float* after = weights.selector.after + at(candidate, rank);
      const auto column = static_cast<std::size_t>(candidate);
      row[column] = std::inner_product(context, context + rank, after, logits[column]);
    }
  }

  // Returns the tokens with the greatest logits of a row, ties by lower token. They are found when the row is first
  // asked for. A NaN is not among them.
  std::span<const token_id> candidates_of(int number, std::span<const float> logits) {
    token_id* const found = candidates_.data() + at(number, config_.selector_candidates);
    int& n = n_candidates_[static_cast<std::size_t>(number)];
    const auto logit = [&](int i) { return logits[static_cast<std::size_t>(found[i])]; };
    if (n < 0) {
      n = 0;
      for (std::size_t token = 0; token < logits.size(); ++token) {
        const float own = logits[token];
        if (std::isnan(own) || (n == config_.selector_candidates && !(own > logit(n - 1)))) continue;
        int i = n < config_.selector_candidates ? n++ : n - 1;
        for (; i > 0 && own > logit(i - 1); --i)
          found[i] = found[i - 1];
        found[i] = static_cast<token_id>(token);
      }
    }
    return {found, static_cast<std::size_t>(n)};
  }

  // Returns the vector of a Markov head after a path: [markov_rank], valid until the next call.
  const float* markov_vector(const block_draft_weights& weights, int place, tree_view tree, node_id node) {
    using enum block_draft_config::markov_kind;
    const int rank = config_.markov_rank, inputs = config_.path_inputs();
    float* const state = path_.data();
    float *const token = state + rank, *const vector = token + rank, *const gates = vector + rank;
    const auto read_token = [&](node_id of) {
      std::copy_n(weights.markov.tokens + at(token_of(tree, of), rank), rank, token);
    };
    // Writes the gates of the row at a depth: they read `from`, [inputs].
    const auto compute_gates = [&](int depth, const float* from) {
      const float* of_state = of_states_.data() + at(row_at(place, depth), config_.markov_gates());
      for (int g = 0; g < config_.markov_gates(); ++g) {
        const float* of_path = weights.markov.gate_of_path + at(g, inputs);
        gates[g] = std::inner_product(of_path, of_path + inputs, from, of_state[g] + weights.markov.gate_bias[g]);
      }
    };
    if (config_.markov != rnn) {
      read_token(node);
      if (config_.markov == vanilla) return token;
      compute_gates(tree.depth[node], token);
      for (int i = 0; i < rank; ++i)
        vector[i] = sigmoid(gates[i]) * token[i];
      return vector;
    }
    std::fill_n(state, rank, 0.0F);
    for (int depth = 0; depth <= tree.depth[node]; ++depth) {
      node_id ancestor = node;
      while (tree.depth[ancestor] > depth)
        ancestor = tree.parent[ancestor];
      read_token(ancestor);
      compute_gates(depth, state);
      for (int i = 0; i < rank; ++i) {
        const float keep = sigmoid(gates[i]);
        state[i] = keep * state[i] + (1.0F - keep) * std::tanh(gates[rank + i]);
      }
    }
    for (int i = 0; i < rank; ++i)
      vector[i] = std::tanh(gates[2 * rank + i]);
    return vector;
  }

  block_draft_config config_;
  std::vector<int> lengths_;          // by place: rows of its last block, or block_length if it had none
  std::vector<float> of_states_;      // [places][block_length][state_outputs]
  std::vector<float> path_;           // a state, a token's embedding, a vector and gates; or a selector's context
  std::vector<token_id> candidates_;  // [places][block_length][selector_candidates]
  std::vector<int> n_candidates_;     // [places][block_length]; -1: they were not found yet
};

}  // namespace espalier::detail
