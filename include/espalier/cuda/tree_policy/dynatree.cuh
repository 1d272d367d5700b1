// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/tree_policy/growth/rule_levels.cuh"
#include "espalier/cuda/tree_policy/growth/values_by_place.cuh"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/dynatree/dynatree_rule.hpp"

namespace espalier::cuda {

//! espalier::dynatree on the device, both papers' settings and history included: the same tree from the same rows.
//!
//! Complexity  for each of max_depth + 1 levels: a draft pass with as many rows as the level may ask about, padding
//!             included (one for the root, one for its only child, then max_breadth times as many from level to level,
//!             half of the budget at most); a launch that reads the rows that are there; a launch of one block. No
//!             allocation after reserve, no synchronisation
//! Law         as espalier::dynatree
//! Errors      option_error for options out of range, and for a budget above the 1024 draws that a block has room for
//! Source      as espalier::dynatree
class dynatree {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit dynatree(dynatree_options options = {})
      : options_(require_options(options)),
        rules_(dynatree_rule(options)),
        levels_({.n_levels = options.max_depth + 1,
                 .root_breadth = 1,
                 .breadth = options.max_breadth,
                 .budget = options.budget}) {
    reserve(1);
  }

  std::int32_t max_nodes() const { return options_.budget; }
  std::int32_t max_depth() const { return options_.max_depth + 1; }

  void reserve(std::int32_t max_texts) {
    rules_.reserve(max_texts);
    levels_.reserve(max_texts);
  }

  node_list begin(const text_batch&, cudaStream_t) { return levels_.begin(); }

  node_list take(const text_batch& texts, const text_rows& rows, cudaStream_t stream) {
    return levels_.take(texts, rows, rules_.data(), stream);
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
  //! Returns, as bytes, the first state of a text that has options of its own; its trees are no larger than the
  //! policy's.
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
  dynatree_options options_;
  detail::values_by_place<dynatree_rule> rules_;
  detail::rule_levels levels_;
};

}  // namespace espalier::cuda
