// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/cuda/tree_policy/growth/draw_queue.cuh"
#include "espalier/tree_policy/dyspec_greedy.hpp"

namespace espalier::cuda {

//! espalier::dyspec_greedy on the device: the same tree from the same rows and random numbers.
//!
//! Complexity  `budget` draft passes of one row are launched, each followed by one launch that makes every draw the
//!             rows allow and then finds the nodes to ask about next. As many do work as nodes are drawn from, a third
//!             to all of the budget; the others are padding, which a captured graph runs all the same: a pass of the
//!             draft that nobody needs costs what any pass does. Where that matters, dyspec_threshold has one pass a
//!             level. A draw is one or two passes over a row by a cluster, and a look at all nodes for the next. No
//!             allocation after construction, no synchronisation
//! Law         that of espalier::dyspec_greedy
//! Errors      option_error for options out of range
//! Source      as espalier::dyspec_greedy. A queue with a place for each node serves as its heap: the same order
class dyspec_greedy {
 public:
  static constexpr regime sampling = regime::without_replacement;

  explicit dyspec_greedy(dyspec_greedy_options options = {}) : options_(require_options(options)) {
    const auto nodes = static_cast<std::size_t>(options.budget) + 1;
    reach_ = device_array<double>(nodes);
    words_ = device_array<std::int32_t>(2 * nodes + 2);
  }

  std::int32_t max_nodes() const { return options_.budget; }

  node_list begin(tree_writer, cudaStream_t) {
    step_ = 0;
    return wanted();
  }

  node_list take(tree_writer tree, const node_rows<float>& rows, chance_source chance, cudaStream_t stream) {
    const std::int32_t nodes = options_.budget + 1;
    std::int32_t* const words = words_.data();
    const detail::draw_queue queue{reach_.data(), words + 2, words + 2 + nodes, words + 1};
    const launch_shape shape = detail::row_tuning_here(rows.rows.vocab).shape(1, sizeof(team::memory));
    launch("draw_by_reach", detail::draw_by_reach<node_rows<float>>, shape, stream, tree, rows, queue, chance,
           options_.budget, wanted().nodes, words);
    ++step_;
    return wanted();
  }

  void observe(tree_writer, const verdict*, cudaStream_t) const {}

 private:
  node_list wanted() const { return {step_ == 0 ? root_.data() : words_.data(), step_ < options_.budget ? 1 : 0}; }

  dyspec_greedy_options options_;
  std::int32_t step_ = 0;
  device_array<node_id> root_{std::span(&root_node, 1)};
  device_array<double> reach_;  // [nodes]
  device_array<std::int32_t>
      words_;  // the node asked about, draws pushed, and of each node the last draw and its order
};

}  // namespace espalier::cuda
