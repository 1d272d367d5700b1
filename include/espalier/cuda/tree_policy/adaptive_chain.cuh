// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/sampling/top_children.cuh"
#include "espalier/cuda/tree_policy/growth/values_by_place.cuh"
#include "espalier/tree_policy/adaptive_chain.hpp"

namespace espalier::cuda {

namespace detail {

// The state that an adaptive chain keeps of a text. The policy's trees are chains: a node's depth is the number of
// drafted tokens up to it.
struct adaptive_length {
  adaptive_chain_options options;
  std::int32_t length;  // largest number of drafted tokens of the next round
};

// Appends the most probable token after the node that was asked about; one thread works for a lane. The new node is
// asked about next if the tree is not full, the chain is shorter than the text's adaptive_length::length, and the
// token's probability is not below the text's `confidence`.
//
// Shapes      tokens, probabilities, log_probs, by_place, drafted, next [places]
template <class LengthT>
ESPALIER_KERNEL void append_while_sure(text_batch texts, node_list asked, child_lists best, const LengthT* by_place,
                                       std::int32_t* drafted, node_id* next) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const LengthT own = by_place[here.place];
  node_id u = *asked.of(here.place);
  if (u != no_node) {
    const float log_prob = best.log_probs[here.place];
    u = log_prob >= -FLT_MAX ? here.tree.append(u, best.tokens[here.place], log_prob) : no_node;
  }
  drafted[here.place] = here.tree.size->n_nodes - 1;
  const bool goes_on = u != no_node && !here.tree.full() && here.tree.depth[u] < own.length &&
                       static_cast<double>(best.probabilities[here.place]) >= own.options.confidence;
  next[here.place] = goes_on ? u : no_node;
}

// Appends the run of each text, but no more tokens than its adaptive_length::length; one thread works for a lane.
//
// Shapes      by_place, drafted [places]
template <class LengthT>
ESPALIER_KERNEL void append_runs_of_length(text_batch texts, text_runs runs, const LengthT* by_place,
                                           std::int32_t* drafted) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  append_run(here, runs, by_place[here.place].length);
  drafted[here.place] = here.tree.size->n_nodes - 1;
}

// Adapts the lengths to the verdicts; one thread works for a lane. The tree may have been cut since it was drafted, and
// in a cascade it may have more nodes, of other policies.
//
// Shapes      decisions, by_place, all_drafted [places]
template <class LengthT>
ESPALIER_KERNEL void observe_length(text_batch texts, const verdict* decisions, LengthT* by_place,
                                    const std::int32_t* all_drafted) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const verdict decision = decisions[here.place];
  const std::int32_t there = here.tree.size->n_nodes - 1, own_drafted = all_drafted[here.place];
  const std::int32_t drafted = own_drafted < there ? own_drafted : there;
  if (decision.token < 0 || drafted == 0) return;
  LengthT& own = by_place[here.place];
  own.length = own.options.next_length(own.length, here.tree.depth[decision.accepted] >= drafted);
}

}  // namespace detail

//! espalier::adaptive_chain on the device: the same chain from the same rows or runs.
//!
//! Complexity  for each of max_length tokens a draft pass of one row a text, a launch that reads it, and a launch of
//!             one thread a text. Passes run even if no text needs them any more, so max_length should be little more
//!             than the usual number of drafted tokens. SequenceDrafter: the drafter's launch, and a launch of one
//!             thread a text. No allocation after reserve, no synchronisation
//! Law         as espalier::adaptive_chain. If a chain was cut to its share of a pass, the part that is left counts as
//!             the draft. If the tree of a cascade was cut, all that this policy drafted counts, up to the nodes that
//!             the tree still has
//! Errors      option_error for options out of range
//! Source      as espalier::adaptive_chain
class adaptive_chain {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit adaptive_chain(adaptive_chain_options options = {})
      : options_(require_options(options)), by_place_(first_of(options)) {
    reserve(1);
  }

  std::int32_t max_nodes() const { return options_.max_length; }

  void reserve(std::int32_t max_texts) {
    const auto texts = static_cast<std::size_t>(max_texts);
    last_ = device_array<node_id>(texts);
    tokens_ = device_array<token_id>(texts);
    probabilities_ = device_array<float>(texts);
    log_probs_ = device_array<float>(texts);
    drafted_ = device_array<std::int32_t>(texts);
    by_place_.reserve(max_texts);
  }

  node_list begin(const text_batch&, cudaStream_t) {
    step_ = 0;
    return wanted();
  }

  node_list take(const text_batch& texts, const text_rows& rows, cudaStream_t stream) {
    const child_lists best{
        .tokens = tokens_.data(), .probabilities = probabilities_.data(), .log_probs = log_probs_.data(), .k = 1};
    top_children(rows.rows.vocab).find(texts, rows, wanted(), best, stream);
    launch("append_while_sure", detail::append_while_sure<detail::adaptive_length>, {.grid = texts.lanes()}, stream,
           texts, wanted(), best, by_place_.data(), drafted_.data(), last_.data());
    ++step_;
    return wanted();
  }

  node_list take(const text_batch& texts, const text_runs& runs, cudaStream_t stream) const {
    launch("append_runs_of_length", detail::append_runs_of_length<detail::adaptive_length>, {.grid = texts.lanes()},
           stream, texts, runs, by_place_.data(), drafted_.data());
    return {};
  }

  void observe(const text_batch& texts, const verdict* decisions, cudaStream_t stream) const {
    launch("observe_length", detail::observe_length<detail::adaptive_length>, {.grid = texts.lanes()}, stream, texts,
           decisions, by_place_.data(), drafted_.data());
  }

  //! Prepares this place for another text, which begins with the policy's own options and their first length.
  void reset(std::int32_t place, cudaStream_t stream) const { by_place_.reset(place, stream); }

  std::size_t learnt_bytes() const { return by_place_.value_bytes; }
  std::byte* learnt() const { return by_place_.bytes(); }

  using options_type = adaptive_chain_options;
  //! Returns, as bytes, the first state of a text that has options of its own; its chains are no longer than the
  //! policy's.
  //!
  //! Errors      option_error for options out of range, or beyond the policy's
  std::vector<std::byte> learnt_with(const adaptive_chain_options& options) const {
    (void)require_options(options);
    require_option("max_length of a text", options.max_length, 1, options_.max_length);
    return by_place_.bytes_of(first_of(options));
  }

 private:
  static detail::adaptive_length first_of(const adaptive_chain_options& options) { return {options, options.length}; }

  node_list wanted() const {
    const std::int32_t n = step_ < options_.max_length ? 1 : 0;
    return step_ == 0 ? node_list{root_.data(), n, 0} : node_list{last_.data(), n, 1};
  }

  adaptive_chain_options options_;
  std::int32_t step_ = 0;
  device_array<node_id> root_{std::span(&root_node, 1)};
  device_array<node_id> last_;     // [texts] the drafted node that is asked about, or no_node
  device_array<token_id> tokens_;  // [texts]
  device_array<float> probabilities_;
  device_array<float> log_probs_;
  device_array<std::int32_t> drafted_;  // [texts] number of tokens drafted in this round
  detail::values_by_place<detail::adaptive_length> by_place_;
};

}  // namespace espalier::cuda
