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
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/cuda/tree_policy/growth/draw_queue.cuh"
#include "espalier/tree_policy/dyspec_greedy.hpp"

namespace espalier::cuda {

//! espalier::dyspec_greedy on the device: the same tree from the same rows and random numbers.
//!
//! Complexity  `budget` draft passes of one row are launched. Each is followed by one launch that makes every draw that
//!             the rows allow, and then finds the node to ask about next. Only one pass is needed for each node that is
//!             drawn from: between one and `budget` passes. The other passes have padding rows alone; they run all the
//!             same, and each costs as much as any pass of the draft. If that matters, use dyspec_threshold, which has
//!             one pass a level. A draw is one or two passes over a row by a cluster, and a look at all nodes for the
//!             next draw. No allocation after reserve, no synchronisation
//! Law         as espalier::dyspec_greedy
//! Errors      option_error for options out of range
//! Source      as espalier::dyspec_greedy, but with a queue that has one entry for each node in place of the heap; the
//!             order is the same
class dyspec_greedy {
 public:
  static constexpr regime sampling = regime::without_replacement;

  explicit dyspec_greedy(dyspec_greedy_options options = {}) : options_(require_options(options)) { reserve(1); }

  std::int32_t max_nodes() const { return options_.budget; }

  void reserve(std::int32_t max_texts) {
    const auto texts = static_cast<std::size_t>(max_texts);
    asked_ = device_array<node_id>(texts);
    n_pushed_ = device_array<std::int32_t>(texts);
    reach_ = device_array<double>(texts * (static_cast<std::size_t>(options_.budget) + 1));
    last_ = device_array<std::int32_t>(reach_.size());
    order_ = device_array<std::int32_t>(reach_.size());
  }

  node_list begin(const text_batch&, cudaStream_t) {
    step_ = 0;
    return wanted();
  }

  node_list take(const text_batch& texts, const text_rows& rows, cudaStream_t stream) {
    const detail::draw_queue queue{reach_.data(), last_.data(), options_.budget + 1, order_.data(), n_pushed_.data()};
    const launch_shape shape = detail::row_tuning_here(rows.rows.vocab).shape(1, sizeof(team::memory), texts.n);
    launch("draw_by_reach", detail::draw_by_reach<text_rows>, shape, stream, texts, rows, queue, options_.budget,
           wanted(), asked_.data());
    ++step_;
    return wanted();
  }

  void observe(const text_batch&, const verdict*, cudaStream_t) const {}

 private:
  node_list wanted() const {
    const std::int32_t n = step_ < options_.budget ? 1 : 0;
    return step_ == 0 ? node_list{root_.data(), n, 0} : node_list{asked_.data(), n, 1};
  }

  dyspec_greedy_options options_;
  std::int32_t step_ = 0;
  device_array<node_id> root_{std::span(&root_node, 1)};
  device_array<node_id> asked_;          // [texts]
  device_array<std::int32_t> n_pushed_;  // [texts]
  device_array<double> reach_;           // [texts][nodes]
  device_array<std::int32_t> last_;      // [texts][nodes]
  device_array<std::int32_t> order_;     // [texts][nodes]
};

}  // namespace espalier::cuda
