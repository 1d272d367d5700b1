// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/cuda/tree_policy/threshold_level.cuh"
#include "espalier/tree_policy/dyspec_threshold.hpp"

namespace espalier::cuda {

//! espalier::dyspec_threshold on the device, filled or not: the same tree from the same rows and random numbers.
//!
//! Complexity  for each of max_depth levels: a draft pass with as many rows as the level may ask about (1 / threshold, half of the
//!             budget at most), padding included; a launch in which a cluster draws from each row; a launch of one block. Filling is one
//!             launch more, in which one cluster makes draw after draw. No allocation after construction, no synchronisation
//! Law         that of espalier::dyspec_threshold
//! Errors      option_error as there
//! Source      as espalier::dyspec_threshold
class dyspec_threshold {
 public:
  static constexpr regime sampling = regime::without_replacement;

  explicit dyspec_threshold(dyspec_threshold_options options = {}) : options_(options) {
    (void)espalier::dyspec_threshold(options);  // checks them
    std::int32_t widest = 1;
    for (std::int32_t depth = 0; depth < options.max_depth; ++depth)
      widest = width(depth) > widest ? width(depth) : widest;
    widest_ = widest;
    const auto nodes = static_cast<std::size_t>(options.budget) + 1;
    const auto entries = static_cast<std::size_t>(widest);
    const std::size_t draws = entries * static_cast<std::size_t>(options.budget);
    reach_ = device_array<double>(nodes + entries + draws);
    log_probs_ = device_array<float>(draws);
    words_ = device_array<std::int32_t>(3 * nodes + 3 * entries + 2 * draws + 2);
  }

  std::int32_t max_nodes() const { return options_.budget; }

  template <StepDrafter DrafterT>
  void grow(tree_writer tree, DrafterT& drafter, chance_source chance, cudaStream_t stream) const {
    const detail::threshold_state state = places();
    const node_rows<float> rows = drafter.rows();
    const detail::row_tuning tuning = detail::row_tuning_here(drafter.vocab_size());
    launch_shape shape{.threads = tuning.threads, .shared_bytes = sizeof(team::memory), .cluster = tuning.blocks};
    launch("start_threshold", detail::start_threshold<tree_writer>, {}, stream, tree, state);
    for (std::int32_t depth = 0; depth < options_.max_depth && width(depth) > 0; ++depth) {
      drafter.propose(tree, {state.asked, width(depth)}, stream);
      shape.grid = dim3(static_cast<unsigned>(width(depth)) * tuning.blocks);
      launch("draw_level", detail::draw_level<node_rows<float>>, shape, stream, tree, rows, state, chance,
             options_.threshold);
      const launch_shape one_block{.threads = detail::append_threads, .shared_bytes = sizeof(detail::append_memory)};
      launch("append_level", detail::append_level<tree_writer>, one_block, stream, tree, state, options_.threshold,
             width(depth), depth + 1 < options_.max_depth ? width(depth + 1) : 0);
    }
    if (!options_.fill) return;
    shape.grid = tuning.blocks;
    launch("fill_tree", detail::fill_tree<node_rows<float>>, shape, stream, tree, rows, state, chance);
  }

  void observe(tree_writer, const verdict*, cudaStream_t) const {}

 private:
  // Nodes that may be asked about at a level. Their reaches add up to 1 at most; the levels above have one node at least, and each node
  // asked about adds one.
  std::int32_t width(std::int32_t depth) const {
    if (depth == 0) return 1;
    const std::int32_t most = (options_.budget - depth + 1) / 2;
    const double by_reach = options_.threshold > 0 ? 1.000001 / options_.threshold : options_.budget;
    return by_reach < most ? static_cast<std::int32_t>(by_reach) : most;
  }

  detail::threshold_state places() const {
    const std::int32_t nodes = options_.budget + 1;
    const std::int32_t draws = widest_ * options_.budget;
    detail::threshold_state s{};
    s.budget = options_.budget;
    s.reach = reach_.data();
    s.reach_left = s.reach + nodes;
    s.child_reach = s.reach_left + widest_;
    s.child_log_prob = log_probs_.data();
    s.nodes = words_.data();
    s.n_draws = s.nodes + nodes;
    s.identity = s.n_draws + nodes;
    s.asked = s.identity + nodes;
    s.n_drawn = s.asked + widest_;
    s.first_draw = s.n_drawn + widest_;
    s.token = s.first_draw + widest_;
    s.next_draw = s.token + draws;
    s.begin = s.next_draw + draws;
    s.end = s.begin + 1;
    return s;
  }

  dyspec_threshold_options options_;
  std::int32_t widest_ = 1;
  device_array<double> reach_;
  device_array<float> log_probs_;
  device_array<std::int32_t> words_;
};

}  // namespace espalier::cuda
