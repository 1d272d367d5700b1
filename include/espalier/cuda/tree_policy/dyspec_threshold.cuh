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
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/cuda/sampling/top_children.cuh"
#include "espalier/cuda/tree_policy/growth/draw_queue.cuh"
#include "espalier/cuda/tree_policy/growth/grow_level.cuh"
#include "espalier/cuda/tree_policy/growth/values_by_place.cuh"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/sampling/undrawn.hpp"
#include "espalier/tree_policy/dyspec_threshold.hpp"

namespace espalier::cuda {

namespace detail {

// A level of dyspec_threshold, for grow_level, in the memory of the device: all draws of its nodes, which are made
// while the tree stays as it is.
//
// Shapes      children, reach: [places][entries][budget]; before [budget + 1]: -1, 0, 1, ..; by_place [places]
struct threshold_step {
  child_lists children;
  double* reach;     // the probability that a draw from the child is looked at
  draw_queue nodes;  // those that were asked about
  const std::int32_t* before;
  const dyspec_threshold_options* by_place;
  std::int32_t n_entries;
  dyspec_threshold_options options{};  // of one text

  __device__ threshold_step of(std::int32_t place) const {
    threshold_step own = *this;
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(place) * n_entries * children.k;
    own.children.tokens += first;
    own.children.log_probs += first;
    own.reach += first;
    own.nodes = nodes.of(place);
    own.options = by_place[place];
    return own;
  }

  __device__ std::int32_t budget() const { return options.budget; }
  __device__ std::int32_t n_draws(std::int32_t, node_id u) const { return nodes.last[u] + 1; }
  __device__ bool expands(const tree_writer& tree, node_id node, std::ptrdiff_t at) const {
    nodes.push(node, -1);
    return tree.depth[node] < options.max_depth && options.needs(reach[at]);
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

// A team an entry of the list, along x, of each lane, along y: every draw that is needed.
template <class RowsT>
ESPALIER_KERNEL void __launch_bounds__(row_threads)
    draw_level(text_batch texts, RowsT all_rows, threshold_step steps, node_list asked) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const std::int32_t entry = team::number();
  const node_id u = asked.of(here.place)[entry];
  if (u == no_node) return;
  const tree_writer& tree = here.tree;
  const node_rows<float> rows = all_rows.of(here.place);
  const threshold_step step = steps.of(here.place);
  team::turns turns;
  const team who(*reinterpret_cast<team::memory*>(shared_memory()), turns);
  double reach = u == root_node ? 1 : step.nodes.reach[u];
  if (who.rank() == 0) step.nodes.last[u] = -1;
  who.sync();
  const undrawn row(step.draws_of(entry, u), root_node, row_view(rows, u, who));
  const std::int32_t left = tree.size->left(step.options.budget);
  for (std::int32_t n = 0; n < left && step.options.needs(reach); ++n) {
    const undrawn_draw drawn = row.draw(here.chance(), {u, n, purpose::draft});
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

  explicit dyspec_threshold(dyspec_threshold_options options = {})
      : options_(require_options(options)), by_place_(options) {
    static_assert(option_of(&dyspec_threshold_options::budget).high() <= detail::level_draws);
    for (std::int32_t depth = 0; depth < options.max_depth; ++depth)
      widest_ = width(depth) > widest_ ? width(depth) : widest_;
    std::vector<std::int32_t> before(static_cast<std::size_t>(options.budget) + 1);
    std::iota(before.begin(), before.end(), -1);
    before_ = device_array<std::int32_t>(std::span<const std::int32_t>(before));
    reserve(1);
  }

  std::int32_t max_nodes() const { return options_.budget; }

  void reserve(std::int32_t max_texts) {
    const auto texts = static_cast<std::size_t>(max_texts);
    asked_ = device_array<node_id>(texts * static_cast<std::size_t>(widest_));
    node_reach_ = device_array<double>(texts * before_.size());
    last_ = device_array<std::int32_t>(node_reach_.size());
    reach_ = device_array<double>(asked_.size() * static_cast<std::size_t>(options_.budget));
    tokens_ = device_array<token_id>(reach_.size());
    log_probs_ = device_array<float>(reach_.size());
    by_place_.reserve(max_texts);
  }

  //! A text begins with the policy's own options.
  void reset(std::int32_t place, cudaStream_t stream) const { by_place_.reset(place, stream); }

  std::size_t learnt_bytes() const { return by_place_.value_bytes; }
  std::byte* learnt() const { return by_place_.bytes(); }

  using options_type = dyspec_threshold_options;
  //! What a text begins with that has other options, with which trees are no larger.
  //!
  //! Errors      option_error for options out of range, or beyond the policy's; for another `fill`, and where it is set
  //!             for another budget
  std::vector<std::byte> learnt_with(const dyspec_threshold_options& options) const {
    (void)require_options(options);
    require_option("budget of a text", options.budget, options_.fill ? options_.budget : 1, options_.budget);
    require_option("max_depth of a text", options.max_depth, 1, options_.max_depth);
    require_option("threshold of a text", options.threshold, options_.threshold, 1.0);
    require_option("fill of a text", options.fill ? 1 : 0, options_.fill ? 1 : 0, options_.fill ? 1 : 0);
    return by_place_.bytes_of(options);
  }

  node_list begin(const text_batch&, cudaStream_t) {
    depth_ = 0;
    return wanted();
  }

  node_list take(const text_batch& texts, const text_rows& rows, cudaStream_t stream) {
    const detail::draw_queue nodes{node_reach_.data(), last_.data(), options_.budget + 1};
    const node_list asked = wanted();
    const detail::threshold_step step{{.tokens = tokens_.data(), .log_probs = log_probs_.data(), .k = options_.budget},
                                      reach_.data(),
                                      nodes,
                                      before_.data(),
                                      by_place_.data(),
                                      asked.n};
    const detail::row_tuning tuning = detail::row_tuning_here(rows.rows.vocab);
    launch("draw_level", detail::draw_level<text_rows>, tuning.shape(asked.n, sizeof(team::memory), texts.n), stream,
           texts, rows, step, asked);
    ++depth_;
    detail::launch_level(texts, step, asked, {asked_.data(), wanted().n, widest_}, stream);
    if (wanted().n <= 0 && options_.fill) {
      launch("draw_by_reach", detail::draw_by_reach<text_rows>, tuning.shape(1, sizeof(team::memory), texts.n), stream,
             texts, rows, nodes, options_.budget, {}, nullptr);
    }
    return wanted();
  }

  void observe(const text_batch&, const verdict*, cudaStream_t) const {}

 private:
  node_list wanted() const {
    static_assert(root_node == 0);
    if (depth_ == 0) return {before_.data() + 1, 1, 0};
    return {asked_.data(), width(depth_), widest_};
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
  std::int32_t widest_ = 1;  // nodes asked about at once
  std::int32_t depth_ = 0;
  device_array<std::int32_t> before_;  // [budget + 1]
  device_array<node_id> asked_;        // [texts][widest]
  device_array<double> node_reach_;    // [texts][budget + 1]
  device_array<std::int32_t> last_;    // [texts][budget + 1]
  device_array<double> reach_;         // [texts][nodes asked about][budget]
  device_array<token_id> tokens_;      // likewise
  device_array<float> log_probs_;
  detail::values_by_place<dyspec_threshold_options> by_place_;
};

}  // namespace espalier::cuda
