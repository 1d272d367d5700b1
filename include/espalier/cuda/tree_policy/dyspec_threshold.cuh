// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/token.hpp"
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
#include "espalier/cuda/tree_policy/growth/asked_levels.cuh"
#include "espalier/cuda/tree_policy/growth/draw_queue.cuh"
#include "espalier/cuda/tree_policy/growth/drawn_children.cuh"
#include "espalier/cuda/tree_policy/growth/grow_level.cuh"
#include "espalier/cuda/tree_policy/growth/values_by_place.cuh"
#include "espalier/sampling/undrawn.hpp"
#include "espalier/tree_policy/dyspec_threshold.hpp"

namespace espalier::cuda {

namespace detail {

// A step of grow_level for dyspec_threshold, in the memory of the device.
//
// Shapes      reach: as children.tokens; rules [places]
struct threshold_step : drawn_children_view {
  double* reach;     // by child: the probability that its first draw is looked at
  draw_queue nodes;  // the nodes that were asked about
  const dyspec_threshold_rule* rules;
  dyspec_threshold_rule rule{};  // the rule of one text

  __device__ threshold_step of(std::int32_t place) const {
    return {drawn_children_view::of(place), reach + first_of(place), nodes.of(place), rules, rules[place]};
  }

  __device__ std::int32_t budget() const { return rule.options().budget; }
  __device__ bool enter(const tree_writer& tree, node_id node, std::ptrdiff_t at) const {
    nodes.push(node, -1);
    return tree.depth[node] < rule.options().max_depth && rule.needs(reach[at]);
  }
  __device__ void ask(node_id node, std::ptrdiff_t at) const { nodes.push(node, reach[at]); }
};

// Makes every draw that a level needs: grid column x is a team for entry x of the list, grid row y is lane y.
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
  if (who.rank() == 0) step.last[entry] = -1;
  who.sync();
  const undrawn row(step.tree_of(entry), root_node, row_view(rows, u, who));
  const std::int32_t left = tree.size->left(step.budget());
  for (std::int32_t n = 0; n < left && step.rule.needs(reach); ++n) {
    const undrawn_draw drawn = row.draw(here.chance(), {u, n, purpose::draft});
    const double share = drawn.token < 0 ? 1 : row.share(drawn);
    who.sync();  // all threads have read the list
    if (who.rank() == 0 && drawn.token >= 0) {
      step.reach[step.end(entry)] = reach * share;
      step.add(entry, drawn);
    }
    who.sync();
    reach *= 1 - share;
  }
  if (who.rank() != 0) return;
  step.nodes.last[u] = step.last[entry];
  step.nodes.push(u, reach > 0 ? reach : -1);
}

// Tells the rule of each text how many draws the levels of its round have made, and whether the budget has room for
// more; one thread works for a lane. Shapes: rules [places]
template <class RuleT>
ESPALIER_KERNEL void note_draws(text_batch texts, RuleT* rules) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  RuleT& rule = rules[here.place];
  rule.drawn(here.tree.size->n_draws, here.tree.size->left(rule.options().budget) > 0);
}

}  // namespace detail

//! espalier::dyspec_threshold on the device, all its options included: the same tree from the same rows and random
//! numbers.
//!
//! Complexity  for each of max_depth levels: a draft pass with as many rows as the level may ask about (at most 1 /
//!             threshold, and half of the budget), padding included; a launch in which a cluster draws from each row; a
//!             launch of one block. Adapting is two launches of one thread a text. Filling is one launch more, in which
//!             one cluster makes one draw after the other. No allocation after reserve, no synchronisation
//! Law         as espalier::dyspec_threshold
//! Errors      option_error for options out of range
//! Source      as espalier::dyspec_threshold
class dyspec_threshold {
 public:
  static constexpr regime sampling = regime::without_replacement;

  explicit dyspec_threshold(dyspec_threshold_options options = {})
      : options_(require_options(options)),
        rules_(dyspec_threshold_rule(options)),
        levels_(widths(options)),
        drawn_(options.budget) {
    static_assert(option_of(&dyspec_threshold_options::budget).high() <= detail::level_draws);
    reserve(1);
  }

  std::int32_t max_nodes() const { return options_.budget; }

  void reserve(std::int32_t max_texts) {
    const auto texts = static_cast<std::size_t>(max_texts), budget = static_cast<std::size_t>(options_.budget);
    rules_.reserve(max_texts);
    levels_.reserve(max_texts);
    drawn_.reserve(max_texts, levels_.widest());
    reach_ = device_array<double>(texts * static_cast<std::size_t>(levels_.widest()) * budget);
    node_reach_ = device_array<double>(texts * (budget + 1));
    last_ = device_array<std::int32_t>(node_reach_.size());
  }

  //! Prepares this place for another text, which begins with the policy's own options.
  void reset(std::int32_t place, cudaStream_t stream) const { rules_.reset(place, stream); }

  std::size_t learnt_bytes() const { return rules_.value_bytes; }
  std::byte* learnt() const { return rules_.bytes(); }

  using options_type = dyspec_threshold_options;
  //! Returns, as bytes, the first state of a text that has options of its own; its trees are no larger than the
  //! policy's.
  //!
  //! Errors      option_error for options out of range; for a budget or max_depth above the policy's, or a threshold
  //!             below the policy's; for another `fill` than the policy's; for another budget if the policy fills; for
  //!             `adapt` if the policy does not adapt
  std::vector<std::byte> learnt_with(const dyspec_threshold_options& options) const {
    (void)require_options(options);
    require_option("budget of a text", options.budget, options_.fill ? options_.budget : 1, options_.budget);
    require_option("max_depth of a text", options.max_depth, 1, options_.max_depth);
    require_option("threshold of a text", options.threshold, options_.threshold, 1.0);
    require_option("fill of a text", options.fill ? 1 : 0, options_.fill ? 1 : 0, options_.fill ? 1 : 0);
    require_option("adapt of a text", options.adapt ? 1 : 0, 0, options_.adapt ? 1 : 0);
    return rules_.bytes_of(dyspec_threshold_rule(options));
  }

  node_list begin(const text_batch&, cudaStream_t) { return levels_.begin(); }

  node_list take(const text_batch& texts, const text_rows& rows, cudaStream_t stream) {
    const detail::draw_queue nodes{node_reach_.data(), last_.data(), options_.budget + 1};
    const node_list asked = levels_.wanted();
    const detail::threshold_step step{drawn_.view(asked.n), reach_.data(), nodes, rules_.data()};
    const detail::row_tuning tuning = detail::row_tuning_here(rows.rows.vocab);
    launch("draw_level", detail::draw_level<text_rows>, tuning.shape(asked.n, sizeof(team::memory), texts.n), stream,
           texts, rows, step, asked);
    const node_list next = levels_.grow(texts, step, stream);
    if (next.n <= 0 && options_.adapt)
      launch("note_draws", detail::note_draws<dyspec_threshold_rule>, {.grid = texts.lanes()}, stream, texts,
             rules_.data());
    if (next.n <= 0 && options_.fill) {
      launch("draw_by_reach", detail::draw_by_reach<text_rows>, tuning.shape(1, sizeof(team::memory), texts.n), stream,
             texts, rows, nodes, options_.budget, {}, nullptr);
    }
    return next;
  }

  void observe(const text_batch& texts, const verdict* decisions, cudaStream_t stream) const {
    if (!options_.adapt) return;
    launch("observe_round", detail::observe_round<dyspec_threshold_rule>, {.grid = texts.lanes()}, stream, texts,
           decisions, rules_.data());
  }

 private:
  // Returns the largest number of nodes of each level that may be asked about. Their reaches add up to 1 at most; each
  // level above has at least one node, and each node that is asked about adds at least one child.
  static std::vector<std::int32_t> widths(const dyspec_threshold_options& options) {
    std::vector<std::int32_t> all{1};
    for (std::int32_t depth = 1; depth < options.max_depth; ++depth) {
      const std::int32_t most = (options.budget - depth + 1) / 2;
      const double by_reach = options.threshold > 0 ? 1.000001 / options.threshold : options.budget;
      all.push_back(by_reach < most ? static_cast<std::int32_t>(by_reach) : most);
    }
    return all;
  }

  dyspec_threshold_options options_;
  detail::values_by_place<dyspec_threshold_rule> rules_;
  detail::asked_levels levels_;
  detail::drawn_children drawn_;
  device_array<double> reach_;       // [texts][nodes asked about][budget]
  device_array<double> node_reach_;  // [texts][budget + 1]
  device_array<std::int32_t> last_;  // [texts][budget + 1]
};

}  // namespace espalier::cuda
