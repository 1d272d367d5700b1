// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

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
#include "espalier/cuda/tree_policy/growth/grow_level.cuh"
#include "espalier/cuda/tree_policy/growth/rule_step.cuh"
#include "espalier/cuda/tree_policy/growth/values_by_place.cuh"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/dynatree/dynatree_rule.hpp"

namespace espalier::cuda {

namespace detail {

template <class RuleT>
ESPALIER_KERNEL void observe_round(text_batch texts, const verdict* decisions, RuleT* rules) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const verdict decision = decisions[here.place];
  if (decision.token >= 0) rules[here.place].observe(here.tree.depth[decision.accepted]);
}

}  // namespace detail

//! espalier::dynatree on the device, both papers' settings and history included: the same tree from the same rows.
//!
//! Complexity  for each of max_depth + 1 levels: a draft pass with as many rows as the level may ask about (max_breadth
//!             to the power of its depth, half of the budget at most), padding included; a launch that reads the rows
//!             that are there; a launch of one block. No allocation after construction, no synchronisation
//! Law         that of espalier::dynatree
//! Errors      option_error for options out of range, and for a budget of more nodes than a block has room for
//! Source      as espalier::dynatree
class dynatree {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit dynatree(dynatree_options options = {})
      : options_(require_options(options)), rules_(dynatree_rule(options)) {
    require_option("budget on the device", options.budget, 2, detail::level_draws);
    for (std::int32_t depth = 0; depth <= options.max_depth; ++depth)
      widest_ = width(depth) > widest_ ? width(depth) : widest_;
    reserve(1);
  }

  std::int32_t max_nodes() const { return options_.budget; }

  void reserve(std::int32_t max_texts) {
    const auto texts = static_cast<std::size_t>(max_texts);
    rules_.reserve(max_texts);
    asked_ = device_array<node_id>(texts * static_cast<std::size_t>(widest_));
    tokens_ = device_array<token_id>(asked_.size() * static_cast<std::size_t>(options_.max_breadth));
    probabilities_ = device_array<float>(tokens_.size());
    log_probs_ = device_array<float>(tokens_.size());
  }

  node_list begin(const text_batch&, cudaStream_t) {
    depth_ = 0;
    return wanted();
  }

  node_list take(const text_batch& texts, const text_rows& rows, cudaStream_t stream) {
    const child_lists best{.tokens = tokens_.data(),
                           .probabilities = probabilities_.data(),
                           .log_probs = log_probs_.data(),
                           .k = depth_ == 0 ? 1 : options_.max_breadth};
    const node_list asked = wanted();
    top_children(rows.rows.vocab).find(texts, rows, asked, best, stream);
    ++depth_;
    detail::launch_level(texts, detail::rule_step<dynatree_rule>{best, rules_.data(), asked.n}, asked,
                         {asked_.data(), wanted().n, widest_}, stream);
    return wanted();
  }

  void observe(const text_batch& texts, const verdict* decisions, cudaStream_t stream) const {
    if (!options_.history) return;
    launch("observe_round", detail::observe_round<dynatree_rule>, {.grid = texts.lanes()}, stream, texts, decisions,
           rules_.data());
  }

  void reset(std::int32_t place, cudaStream_t stream) const { rules_.reset(place, stream); }

  std::size_t learnt_bytes() const { return rules_.value_bytes; }
  std::byte* learnt() const { return rules_.bytes(); }

  using options_type = dynatree_options;
  //! What a text begins with that has other options, with which trees are no larger.
  //!
  //! Errors      option_error for options out of range, or beyond the policy's
  std::vector<std::byte> learnt_with(const dynatree_options& options) const {
    (void)require_options(options);
    require_option("budget of a text", options.budget, 2, options_.budget);
    require_option("max_depth of a text", options.max_depth, 1, options_.max_depth);
    require_option("max_breadth of a text", options.max_breadth, 1, options_.max_breadth);
    require_option("history of a text", options.history ? 1 : 0, 0, options_.history ? 1 : 0);
    return rules_.bytes_of(dynatree_rule(options));
  }

 private:
  node_list wanted() const {
    if (depth_ == 0) return {root_.data(), 1, 0};
    return {asked_.data(), width(depth_), widest_};
  }

  // Nodes of this depth that may be asked about. The root has one child.
  std::int32_t width(std::int32_t depth) const {
    if (depth == 0) return 1;
    if (depth > options_.max_depth) return 0;
    return detail::level_width(depth, depth - 1, options_.max_breadth, options_.budget);
  }

  dynatree_options options_;
  std::int32_t widest_ = 1;  // nodes asked about at once
  std::int32_t depth_ = 0;
  device_array<node_id> root_{std::span(&root_node, 1)};
  detail::values_by_place<dynatree_rule> rules_;
  device_array<node_id> asked_;    // [texts][widest]
  device_array<token_id> tokens_;  // [texts][nodes asked about][max_breadth]
  device_array<float> probabilities_;
  device_array<float> log_probs_;
};

}  // namespace espalier::cuda
