// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/sampling/top_children.cuh"
#include "espalier/cuda/sampling/top_tokens.cuh"
#include "espalier/tree_policy/chain.hpp"

namespace espalier::cuda {

namespace detail {

// Appends each text's n tokens as a chain below the node that was asked about; one thread works for a lane. Token i is
// the most probable one of the text's row i; the chain ends before a row that gave no token. The last new node is asked
// about next, unless a row gave no token or the tree is full.
//
// Shapes      tokens, log_probs [places][n]; next [places]
template <class NodeT>
ESPALIER_KERNEL void append_chain(text_batch texts, node_list asked, const token_id* tokens, const float* log_probs,
                                  std::int32_t n, NodeT* next) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  tokens += static_cast<std::ptrdiff_t>(here.place) * n;
  log_probs += static_cast<std::ptrdiff_t>(here.place) * n;
  node_id u = *asked.of(here.place);
  for (std::int32_t i = 0; i < n && u != no_node; ++i)
    u = log_probs[i] >= -FLT_MAX ? here.tree.append(u, tokens[i], log_probs[i]) : no_node;
  next[here.place] = here.tree.full() ? no_node : u;
}

// Appends the run of each text to its tree, `length` tokens at most; one thread works for a lane.
template <class RunsT>
ESPALIER_KERNEL void append_runs(text_batch texts, RunsT runs, std::int32_t length) {
  const text_in_batch here = texts.here();
  if (here.place >= 0) append_run(here, runs, length);
}

}  // namespace detail

//! espalier::chain on the device: the same tree from the same rows or runs.
//!
//! Complexity  StepDrafter: for each of `length` tokens a draft pass of one row a text, a launch that reads it, and a
//!             launch of one thread a text. BlockDrafter: one draft pass, one launch over its rows, and a launch of one
//!             thread a text. SequenceDrafter: the drafter's launch, and a launch of one thread a text. No allocation
//!             after reserve, no synchronisation
//! Errors      option_error for options out of range; a fault for a block's logits that top_tokens refuses, also in
//!             rows that a full tree does not need
//! Source      as espalier::chain
class chain {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit chain(chain_options options = {}) : options_(require_options(options)) { reserve(1); }

  std::int32_t max_nodes() const { return options_.length; }

  void reserve(std::int32_t max_texts) {
    const auto texts = static_cast<std::size_t>(max_texts);
    last_ = device_array<node_id>(texts);
    tokens_ = device_array<token_id>(texts * static_cast<std::size_t>(options_.length));
    log_probs_ = device_array<float>(tokens_.size());
  }

  node_list begin(const text_batch&, cudaStream_t) {
    step_ = 0;
    return wanted();
  }

  node_list take(const text_batch& texts, const text_rows& rows, cudaStream_t stream) {
    const child_lists best{.tokens = tokens_.data(), .log_probs = log_probs_.data(), .k = 1};
    top_children(rows.rows.vocab).find(texts, rows, wanted(), best, stream);
    append(texts, 1, stream);
    return wanted();
  }

  template <class NumberT>
  node_list take(const text_batch& texts, const block_rows<NumberT>& block, cudaStream_t stream) {
    const std::int32_t n_rows = (std::min)(block.length, options_.length);
    const token_lists lists{.tokens = tokens_.data(), .log_probs = log_probs_.data(), .k = 1};
    top_tokens<NumberT>(block.logits.vocab).of_blocks(texts, block, n_rows, lists, row_origin::of_block(0), stream);
    append(texts, n_rows, stream);
    return {};
  }

  node_list take(const text_batch& texts, const text_runs& runs, cudaStream_t stream) const {
    launch("append_runs", detail::append_runs<text_runs>, {.grid = texts.lanes()}, stream, texts, runs,
           options_.length);
    return {};
  }

  void observe(const text_batch&, const verdict*, cudaStream_t) const {}

 private:
  node_list wanted() const {
    const std::int32_t n = step_ < options_.length ? 1 : 0;
    return step_ == 0 ? node_list{root_.data(), n, 0} : node_list{last_.data(), n, 1};
  }

  void append(const text_batch& texts, std::int32_t n, cudaStream_t stream) {
    launch("append_chain", detail::append_chain<node_id>, {.grid = texts.lanes()}, stream, texts, wanted(),
           tokens_.data(), log_probs_.data(), n, last_.data());
    ++step_;
  }

  chain_options options_;
  std::int32_t step_ = 0;
  device_array<node_id> root_{std::span(&root_node, 1)};
  device_array<node_id> last_;     // [texts] the drafted node that is asked about, or no_node
  device_array<token_id> tokens_;  // [texts][length]; [texts] when one row is read at a time
  device_array<float> log_probs_;
};

}  // namespace espalier::cuda
