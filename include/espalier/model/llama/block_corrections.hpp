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

// Returns the token. Errors: input_error for a token outside the vocabulary
inline token_id require_token(const block_draft_config& config, token_id id) {
  if (id < 0 || id >= config.vocab_size) {
    raise<input_error>("the block draft is asked for the row after token ", id, ", but the vocabulary ends at ",
                       config.vocab_size - 1, ".");
  }
  return id;
}

// The corrections of a block's rows by a refiner. Rows are counted with the pending token's, also where it drafts
// nothing. A row's vector depends on the block, the row and the token before it alone, so the last vector of each row
// is kept with its token: along a path that grows, one more is computed for each node.
//
// Complexity: correct: a product with [refiner_rank][refiner_rank] for each row whose token before is not the last
// one, those of the MLP, and that with [columns][refiner_rank]
class block_refiner {
 public:
  explicit block_refiner(const block_draft_config& config)
      : config_(config), rank_(config.refiner_rank), rows_(config.rows_of(config.block_length)) {
    if (!is_there()) return;
    states_.resize(size(rows_ + 1, config.hidden_size));
    of_states_.resize(size(rows_ + 1, rank_));
    mixed_.resize(size(1, rank_));
    gates_.resize(size(1, config.refiner_inner));
    ups_.resize(gates_.size());
    new_rows_.reserve(size(1, rows_));
  }

  bool is_there() const { return rank_ > 0; }

  // Makes room for the blocks of places 0 to n - 1.
  void make_places(int n) {
    if (!is_there()) return;
    blocks_.resize(size(1, n), {rows_, 0});
    tokens_.resize(size(n, rows_), -1);
    without_token_.resize(size(n * rows_, rank_));
    vectors_.resize(without_token_.size());
  }

  // Begins the block after a text.
  void begin(int place, int length, std::span<const token_id> text) {
    if (!is_there()) return;
    blocks_[size(1, place)] = {config_.rows_of(length), text[text.size() - (text.size() > 1 ? 2 : 1)]};
    std::fill_n(tokens_.begin() + at(place, rows_), rows_, -1);
  }

  // Computes the thread's part of what the vectors of a block's rows have without the token before. `stream` are the
  // rows after the last layer, `next` is the matrix that is multiplied next.
  void read_stream(transformer_pass& pass, int thread, const block_draft_weights& weights, int place,
                   const float* stream, const weight_matrix& next) {
    const auto& own = weights.refiner;
    const int n = blocks_[size(1, place)].rows, width = config_.hidden_size;
    const auto [first, last] = pass.team().share(thread, n);
    for (int row = first; row < last; ++row)
      rms_norm(stream + at(row, width), width, weights.final_norm.scale, config_.norm_epsilon,
               states_.data() + at(row, width));
    pass.team().barrier();
    float* const mean = states_.data() + at(n, width);
    const auto [from, to] = pass.team().share(thread, width);
    for (int i = from; i < to; ++i) {
      float sum = 0.0F;
      for (int row = 0; row < n; ++row)
        sum += states_[size(row, width) + size(1, i)];
      mean[i] = sum / static_cast<float>(n);
    }
    pass.team().barrier();
    float* const of_mean = of_states_.data() + at(n, rank_);
    float* const vectors = without_token_.data() + at(place * rows_, rank_);
    pass.multiply(thread, own.of_state, states_.data(), n, of_states_.data(), false, own.of_mean);
    pass.multiply(thread, own.of_mean, mean, 1, of_mean, false, own.in_mean);
    pass.team().barrier();
    pass.multiply(thread, own.in_mean, of_mean, 1, vectors, false, own.in_state);
    const auto [begin, end] = pass.products().outputs_of(thread, own.in_mean);
    for (int row = 1; row < n; ++row)
      std::copy(vectors + begin, vectors + end, vectors + at(row, rank_) + begin);
    pass.multiply(thread, own.in_state, of_states_.data(), n, vectors, true, next);
  }

  // Adds to the logits of the row after a node. A node below the last row has that row, with its own token before it.
  //
  // Errors: input_error for a token of the path outside the vocabulary
  void correct(transformer_pass& pass, const block_draft_weights& weights, int place, tree_view tree, node_id node,
               std::span<float> logits) {
    const auto& own = weights.refiner;
    const last_block block = blocks_[size(1, place)];
    const int of_root = config_.from_pending ? 0 : 1, row = (std::min)(tree.depth[node] + of_root, block.rows - 1);
    new_rows_.clear();
    renew(place, row, tree.token[node]);
    for (node_id at = node; at != root_node;) {
      at = tree.parent[at];
      if (tree.depth[at] + of_root < row) renew(place, tree.depth[at] + of_root, tree.token[at]);
    }
    if (of_root == 1 && row > 0) renew(place, 0, block.before);
    float* const vectors = vector_of(place, 0);
    const float* const factors = own.mixer + at(row * rows_, rank_);
    pass.team().run([&](int thread) {
      for (const new_row& made : new_rows_) {
        pass.multiply(thread, own.in_token, own.tokens + at(made.before, rank_), 1, vectors + at(made.row, rank_), true,
                      own.in_token);
      }
      const auto [first, last] = pass.products().outputs_of(thread, own.in_token);
      std::copy(vectors + at(row, rank_) + first, vectors + at(row, rank_) + last, mixed_.begin() + first);
      for (int other = 0; other <= row; ++other)
        add_products(factors + at(other, rank_) + first, vectors + at(other, rank_) + first, last - first,
                     mixed_.data() + first);
      pass.team().barrier();
      pass.multiply(thread, own.gate, mixed_.data(), 1, gates_.data(), false, own.up);
      pass.multiply(thread, own.up, mixed_.data(), 1, ups_.data(), false, own.down);
      const auto [begin, end] = pass.products().outputs_of(thread, own.gate);
      silu_times(gates_.data() + begin, ups_.data() + begin, end - begin);
      pass.team().barrier();
      pass.multiply(thread, own.down, gates_.data(), 1, mixed_.data(), true, own.out);
      pass.team().barrier();
      pass.multiply(thread, own.out, mixed_.data(), 1, logits.data(), true, own.out);
    });
    for (const new_row& made : new_rows_)
      token_of(place, made.row) = made.before;
  }

 private:
  // The last block of a place.
  struct last_block {
    int rows;         // with the pending token's row
    token_id before;  // the token before the pending one, or the pending one if it is the first of its text
  };

  // A row whose vector lacks the token before it.
  struct new_row {
    int row;
    token_id before;
  };

  static std::ptrdiff_t at(int row, int width) { return static_cast<std::ptrdiff_t>(row) * width; }
  static std::size_t size(int rows, int width) { return static_cast<std::size_t>(at(rows, width)); }
  float* vector_of(int place, int row) { return vectors_.data() + at(place * rows_ + row, rank_); }

  token_id& token_of(int place, int row) { return tokens_[size(1, place * rows_ + row)]; }

  // Begins a row's vector anew and adds the row to new_rows_, unless the vector is of this token.
  void renew(int place, int row, token_id before) {
    if (token_of(place, row) == require_token(config_, before)) return;
    token_of(place, row) = -1;
    std::copy_n(without_token_.data() + at(place * rows_ + row, rank_), rank_, vector_of(place, row));
    new_rows_.push_back({row, before});
  }

  block_draft_config config_;
  int rank_, rows_;
  std::vector<last_block> blocks_;    // [places]
  std::vector<token_id> tokens_;      // [places][rows] the token before the row for which its vector is; -1: none
  std::vector<float> without_token_;  // [places][rows][rank]
  std::vector<float> vectors_;        // [places][rows][rank]
  std::vector<float> states_;         // [rows][hidden_size] of the block that is being read, and their mean
  std::vector<float> of_states_;      // [rows][rank] their products, and the mean's
  std::vector<float> mixed_, gates_, ups_;
  std::vector<new_row> new_rows_;
};

// The corrections of a block's rows by path: those of a Markov head, of a selector, or of a refiner. For the first two
// it holds, by place, the products of one matrix with the states of the last block's rows.
class block_corrections {
 public:
  explicit block_corrections(const block_draft_config& config) : config_(config), refiner_(config) {
    path_.resize(static_cast<std::size_t>(3 * config.markov_rank + config.markov_gates() + config.selector_rank));
  }

  // Makes room for the blocks of places 0 to n - 1.
  void make_places(int n) {
    const std::size_t rows = static_cast<std::size_t>(n) * static_cast<std::size_t>(config_.block_length);
    lengths_.resize(static_cast<std::size_t>(n), config_.block_length);
    refiner_.make_places(n);
    of_states_.resize(rows * static_cast<std::size_t>(state_outputs()));
    if (config_.selector_rank == 0) return;
    n_candidates_.resize(rows, -1);
    candidates_.resize(rows * static_cast<std::size_t>(config_.selector_candidates));
  }

  // Begins a block of `length` rows after a text.
  void begin(int place, int length, std::span<const token_id> text) {
    lengths_[static_cast<std::size_t>(place)] = length;
    refiner_.begin(place, length, text);
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

  // Reads the stream of all rows of a block, after the last layer, if there is a refiner.
  void read_stream(transformer_pass& pass, int thread, const block_draft_weights& weights, int place,
                   const float* stream, const weight_matrix& next) {
    if (refiner_.is_there()) refiner_.read_stream(pass, thread, weights, place, stream, next);
  }

  // Corrects a row of logits, which is the row of the node's depth in `block`, the last block of this place. A node
  // below the last row has the last row's state.
  //
  // Errors: input_error for a token of the path outside the vocabulary
  void correct(transformer_pass& pass, const block_draft_weights& weights, int place, vocab_rows<float> block,
               tree_view tree, node_id node, std::span<float> row) {
    if (refiner_.is_there()) return refiner_.correct(pass, weights, place, tree, node, row);
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

  token_id token_of(tree_view tree, node_id node) const { return require_token(config_, tree.token[node]); }

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
  block_refiner refiner_;
  std::vector<int> lengths_;          // by place: rows of its last block, or block_length if it had none
  std::vector<float> of_states_;      // [places][block_length][state_outputs]
  std::vector<float> path_;           // a state, a token's embedding, a vector and gates; or a selector's context
  std::vector<token_id> candidates_;  // [places][block_length][selector_candidates]
  std::vector<int> n_candidates_;     // [places][block_length]; -1: they were not found yet
};

}  // namespace espalier::detail
