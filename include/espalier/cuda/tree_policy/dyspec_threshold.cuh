// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/cuda/sampling/top_children.cuh"
#include "espalier/cuda/tree_policy/growth/draw_queue.cuh"
#include "espalier/cuda/tree_policy/growth/grow_level.cuh"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/sampling/undrawn.hpp"
#include "espalier/tree_policy/dyspec_threshold.hpp"

namespace espalier::cuda {

namespace detail {

// A level of dyspec_threshold, for grow_level, in the memory of the device: all draws of its nodes, which are made
// while the tree stays as it is.
//
// Shapes      children, reach: [entries][budget]; before [budget + 1]: -1, 0, 1, ..
struct threshold_step {
  child_lists children;
  double* reach;     // the probability that a draw from the child is looked at
  draw_queue nodes;  // those that were asked about
  const std::int32_t* before;
  dyspec_threshold_options options;

  __device__ std::int32_t n_draws(std::int32_t, node_id u) const { return nodes.last[u] + 1; }
  __device__ bool expands(const tree_writer&, node_id node, std::ptrdiff_t at) const {
    nodes.push(node, -1);
    return options.needs(reach[at]);
  }
  __device__ void ask(node_id node, std::ptrdiff_t at) const { nodes.push(node, reach[at]); }

  // The draws of an entry as those of a tree's root, the last one first.
  __device__ tree_view draws_of(std::int32_t entry, node_id u) const {
    tree_view view;
    view.token = children.tokens + static_cast<std::ptrdiff_t>(entry) * children.k;
    view.first_draw = nodes.last + u;
    view.next_draw = before;
    view.drawn_node = before + 1;
    return view;
  }
};

// A team an entry of the list: every draw that is needed.
template <class RowsT>
ESPALIER_KERNEL void __launch_bounds__(row_threads)
    draw_level(tree_writer tree, RowsT rows, threshold_step step, const node_id* asked, chance_source chance) {
  const std::int32_t entry = team::number();
  const node_id u = asked[entry];
  if (u == no_node) return;
  team::turns turns;
  const team who(*reinterpret_cast<team::memory*>(shared_memory()), turns);
  double reach = u == root_node ? 1 : step.nodes.reach[u];
  if (who.rank() == 0) step.nodes.last[u] = -1;
  who.sync();
  const undrawn row(step.draws_of(entry, u), root_node, row_view(rows, u, who));
  const std::int32_t left = tree.size->left(step.options.budget);
  for (std::int32_t n = 0; n < left && step.options.needs(reach); ++n) {
    const undrawn_draw drawn = row.draw(chance.now(), {u, n, purpose::draft});
    const double share = drawn.token < 0 ? 1 : row.share(drawn);
    who.sync();  // all have looked at the list
    if (who.rank() == 0 && drawn.token >= 0) {
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(entry) * step.children.k + n;
      step.children.tokens[at] = drawn.token;
      step.children.log_probs[at] = espalier::detail::log_prob_of(drawn.probability);
      step.reach[at] = reach * share;
      step.nodes.last[u] = n;
    }
    who.sync();
    reach *= 1 - share;
  }
  if (who.rank() == 0) step.nodes.push(u, reach > 0 ? reach : -1);
}

}  // namespace detail

//! espalier::dyspec_threshold on the device, filled or not: the same tree from the same rows and random numbers.
//!
//! Complexity  for each of max_depth levels: a draft pass with as many rows as the level may ask about (1 / threshold,
//!             half of the budget at most), padding included; a launch in which a cluster draws from each row; a launch
//!             of one block. Filling is one launch more, in which one cluster makes draw after draw. No allocation
//!             after construction, no synchronisation
//! Law         that of espalier::dyspec_threshold
//! Errors      option_error for options out of range
//! Source      as espalier::dyspec_threshold
class dyspec_threshold {
 public:
  static constexpr regime sampling = regime::without_replacement;

  explicit dyspec_threshold(dyspec_threshold_options options = {}) : options_(require_options(options)) {
    static_assert(option_of(&dyspec_threshold_options::budget).high() <= detail::level_draws);
    std::int32_t widest = 1;
    for (std::int32_t depth = 0; depth < options.max_depth; ++depth)
      widest = width(depth) > widest ? width(depth) : widest;
    const auto nodes = static_cast<std::size_t>(options.budget) + 1;
    const auto entries = static_cast<std::size_t>(widest);
    const std::size_t draws = entries * static_cast<std::size_t>(options.budget);
    reach_ = device_array<double>(nodes + draws);
    log_probs_ = device_array<float>(draws);
    tokens_ = device_array<token_id>(draws);
    last_ = device_array<std::int32_t>(nodes);
    asked_ = device_array<node_id>(entries);
    std::vector<std::int32_t> before(nodes);
    std::iota(before.begin(), before.end(), -1);
    before_ = device_array<std::int32_t>(std::span<const std::int32_t>(before));
  }

  std::int32_t max_nodes() const { return options_.budget; }

  node_list begin(tree_writer, cudaStream_t) {
    depth_ = 0;
    return wanted();
  }

  node_list take(tree_writer tree, const node_rows<float>& rows, chance_source chance, cudaStream_t stream) {
    const detail::draw_queue nodes{reach_.data(), last_.data()};
    const detail::threshold_step step{{.tokens = tokens_.data(), .log_probs = log_probs_.data(), .k = options_.budget},
                                      reach_.data() + options_.budget + 1,
                                      nodes,
                                      before_.data(),
                                      options_};
    const detail::row_tuning tuning = detail::row_tuning_here(rows.rows.vocab);
    const node_list asked = wanted();
    launch("draw_level", detail::draw_level<node_rows<float>>, tuning.shape(asked.n, sizeof(team::memory)), stream,
           tree, rows, step, asked.nodes, chance);
    ++depth_;
    detail::launch_level(tree, step, options_.budget, asked, asked_.data(), wanted().n, stream);
    if (wanted().n <= 0 && options_.fill) {
      launch("draw_by_reach", detail::draw_by_reach<node_rows<float>>, tuning.shape(1, sizeof(team::memory)), stream,
             tree, rows, nodes, chance, options_.budget, nullptr, nullptr);
    }
    return wanted();
  }

  void observe(tree_writer, const verdict*, cudaStream_t) const {}

 private:
  node_list wanted() const {
    static_assert(root_node == 0);
    return {depth_ == 0 ? before_.data() + 1 : asked_.data(), width(depth_)};
  }

  // Nodes that may be asked about at a level. Their reaches add up to 1 at most; the levels above have one node at
  // least, and each node asked about adds one.
  std::int32_t width(std::int32_t depth) const {
    if (depth == 0) return 1;
    const std::int32_t most = depth >= options_.max_depth ? 0 : (options_.budget - depth + 1) / 2;
    const double by_reach = options_.threshold > 0 ? 1.000001 / options_.threshold : options_.budget;
    return by_reach < most ? static_cast<std::int32_t>(by_reach) : most;
  }

  dyspec_threshold_options options_;
  std::int32_t depth_ = 0;
  device_array<std::int32_t> before_;
  device_array<double> reach_;       // [budget + 1] of nodes, then [widest level][budget] of children
  device_array<std::int32_t> last_;  // [budget + 1]
  device_array<node_id> asked_;      // [widest level]
  device_array<token_id> tokens_;    // [widest level][budget]
  device_array<float> log_probs_;
};

}  // namespace espalier::cuda
