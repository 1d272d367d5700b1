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
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/tree_policy/growth/rule_levels.cuh"
#include "espalier/cuda/tree_policy/growth/values_by_place.cuh"
#include "espalier/tree_policy/fixed.hpp"

namespace espalier::cuda {

namespace detail {

// The rule of a text for rule_step: the text's options.
struct fixed_rule {
  fixed_options options;

  ESPALIER_HOST_DEVICE std::int32_t budget() const { return options.budget; }
  ESPALIER_HOST_DEVICE std::int32_t breadth(double) const { return options.breadth; }
  ESPALIER_HOST_DEVICE bool expands(std::int32_t depth, float) const { return depth < options.depth; }
};

}  // namespace detail

//! espalier::fixed on the device: the same tree from the same rows.
//!
//! Complexity  for each of `depth` levels: a draft pass with as many rows as the level may ask about (`breadth` to the
//!             power of the level, counted from 0, half of the budget at most), padding included; a launch that reads
//!             the rows that are there; a launch of one block. No allocation after reserve, no synchronisation
//! Errors      option_error for options out of range, and for a budget above the 1024 draws that a block has room for
//! Source      as espalier::fixed
class fixed {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit fixed(fixed_options options = {})
      : options_(require_options(options)),
        rules_({options}),
        levels_({.n_levels = options.depth,
                 .root_breadth = options.breadth,
                 .breadth = options.breadth,
                 .budget = options.budget}) {
    reserve(1);
  }

  std::int32_t max_nodes() const { return options_.budget; }
  std::int32_t max_depth() const { return options_.depth; }

  void reserve(std::int32_t max_texts) {
    rules_.reserve(max_texts);
    levels_.reserve(max_texts);
  }

  node_list begin(const text_batch&, cudaStream_t) { return levels_.begin(); }

  node_list take(const text_batch& texts, const text_rows& rows, cudaStream_t stream) {
    return levels_.take(texts, rows, rules_.data(), stream);
  }

  void observe(const text_batch&, const verdict*, cudaStream_t) const {}

  //! Prepares this place for another text, which begins with the policy's own options.
  void reset(std::int32_t place, cudaStream_t stream) const { rules_.reset(place, stream); }

  std::size_t learnt_bytes() const { return rules_.value_bytes; }
  std::byte* learnt() const { return rules_.bytes(); }

  using options_type = fixed_options;
  //! Returns, as bytes, the first state of a text that has options of its own; its trees are no larger than the
  //! policy's.
  //!
  //! Errors      option_error for options out of range, or beyond the policy's
  std::vector<std::byte> learnt_with(const fixed_options& options) const {
    (void)require_options(options);
    require_option("budget of a text", options.budget, 2, options_.budget);
    require_option("depth of a text", options.depth, 1, options_.depth);
    require_option("breadth of a text", options.breadth, 1, options_.breadth);
    return rules_.bytes_of({options});
  }

 private:
  fixed_options options_;
  detail::values_by_place<detail::fixed_rule> rules_;
  detail::rule_levels levels_;
};

}  // namespace espalier::cuda
