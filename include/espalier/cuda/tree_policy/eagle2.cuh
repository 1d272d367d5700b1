// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/sampling/top_children.cuh"
#include "espalier/cuda/tree_policy/growth/append_draws.cuh"
#include "espalier/cuda/tree_policy/growth/best_of_list.cuh"
#include "espalier/cuda/tree_policy/growth/rebuild_tree.cuh"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/tree_policy/eagle2.hpp"
#include "espalier/tree_policy/growth/asked_nodes.hpp"

namespace espalier::cuda {

namespace detail {

struct scored_node : considered_node {
  double score;  // log-probability of the path; above 0: there is no node

  // Returns a key that is larger for better nodes; 0 if there is no node.
  __device__ std::uint64_t key() const { return score > 0 ? 0 : ~key_of(0.0 - score); }
};

// The nodes that eagle2 has considered of a text, in the memory of the device: one entry for each child of each node
// that may be asked about, level after level.
//
// Shapes      all [places][n_all]; scores [places][beam]: scores of the nodes that are asked about
struct scored_nodes {
  scored_node* all;
  double* scores;
  std::int32_t n_all;
  std::int32_t beam;

  __device__ scored_nodes of(std::int32_t place) const {
    return {all + static_cast<std::ptrdiff_t>(place) * n_all, scores + static_cast<std::ptrdiff_t>(place) * beam, n_all,
            beam};
  }
};

inline constexpr std::int32_t beam_threads = 256;

// Considers the children of a level, which are written to `all` from `first` on; a block works for a lane. If n_next is
// above 0, the best `beam` of them are put into the tree, to be asked about next.
//
// Shapes      next [places][beam]
template <class NodesT>
ESPALIER_KERNEL void __launch_bounds__(beam_threads)
    consider_level(text_batch texts, node_list all_asked, child_lists children, NodesT everything, std::int32_t first,
                   node_id* next, std::int32_t n_next) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const tree_writer& tree = here.tree;
  const NodesT nodes = everything.of(here.place);
  const node_id* const asked = all_asked.of(here.place);
  const std::int32_t n = all_asked.n * nodes.beam;
  for (std::int32_t i = thread; i < n; i += beam_threads) {
    const std::int32_t entry = i / nodes.beam;
    const node_id u = asked[entry];
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(here.place) * n + i;
    scored_node own{{.parent = u}, 1};
    if (u != no_node && children.tokens[at] >= 0) {
      const double log_prob = espalier::detail::path_log_prob_of(static_cast<double>(children.probabilities[at]));
      own.token = children.tokens[at];
      own.log_prob = static_cast<float>(log_prob);
      own.score = (u == root_node ? 0 : nodes.scores[entry]) + log_prob;
    }
    nodes.all[first + i] = own;
  }
  __syncthreads();
  if (n_next <= 0) return;
  best_of_list<beam_threads> best(*reinterpret_cast<typename best_of_list<beam_threads>::memory*>(shared_memory()));
  const std::int32_t n_best = best.find(n, nodes.beam, [&](std::int32_t i) { return nodes.all[first + i].key(); });
  best.sort(n_best);
  const tree_size size = *tree.size;
  const std::int32_t left = size.left(), n_added = n_best < left ? n_best : left;
  listed_draw draw;
  if (thread < n_added) {
    scored_node& own = nodes.all[first + best.place(thread)];
    own.node = size.n_nodes + thread;
    nodes.scores[thread] = own.score;
    draw = listed_draw::of(tree, own.parent, own.token, own.log_prob);
  }
  for (std::int32_t i = thread; i < n_next; i += beam_threads)
    next[static_cast<std::ptrdiff_t>(here.place) * nodes.beam + i] = i < n_added ? size.n_nodes + i : no_node;
  __syncthreads();
  append_in_order(tree, size, n_added, draw, best);
}

// Rebuilds each tree from the best of all considered nodes; a block works for a lane.
//
// Shapes      was [places][budget + 1]
template <std::int32_t threadsN, class NodesT>
ESPALIER_KERNEL void __launch_bounds__(threadsN)
    keep_considered(text_batch texts, NodesT everything, std::int32_t budget, node_id* was) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  auto& memory = *reinterpret_cast<rebuild_memory<threadsN>*>(shared_memory());
  const NodesT nodes = everything.of(here.place);
  const std::int32_t limit = here.tree.limit();
  best_of_list<threadsN> best(memory.best);
  const std::int32_t n =
      best.find(nodes.n_all, limit < budget ? limit : budget, [&](std::int32_t i) { return nodes.all[i].key(); });
  const auto i = static_cast<std::int32_t>(threadIdx.x);
  considered_node own;
  if (i < n) own = nodes.all[best.place(i)];
  rebuild_tree<threadsN>(here.tree, n, own, memory, was + static_cast<std::ptrdiff_t>(here.place) * (budget + 1));
}

}  // namespace detail

//! espalier::eagle2 on the device: the same tree from the same rows.
//!
//! Complexity  for each of depth + 1 levels a draft pass of one row, or below the root of `beam` rows, padding
//!             included; a launch that reads these rows; a launch of one block. At the end one more launch of one
//!             block, which looks at each considered node at most nine times. For each text there are beam + depth *
//!             beam^2 of these nodes, of 24 bytes each. No allocation after reserve, no synchronisation
//! Law         as espalier::eagle2
//! Errors      option_error for options out of range
//! Source      as espalier::eagle2
class eagle2 {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit eagle2(eagle2_options options = {}) : options_(require_options(options)) {
    static_assert(option_of(&eagle2_options::beam).high() <= detail::beam_threads);
    static_assert(option_of(&eagle2_options::budget).high() <= 1024);
    static_assert(option_of(&eagle2_options::beam).high() * option_of(&eagle2_options::depth).high() <=
                  detail::rebuild_memory<256>::max_asked);
    reserve(1);
  }

  std::int32_t max_nodes() const { return options_.budget; }
  std::int32_t max_depth() const { return options_.depth + 1; }
  std::int32_t max_asked() const { return options_.max_asked(); }
  moved_nodes was() const { return {was_.data(), options_.budget + 1}; }

  void reserve(std::int32_t max_texts) {
    const auto texts = static_cast<std::size_t>(max_texts), beam = static_cast<std::size_t>(options_.beam);
    nodes_ = device_array<detail::scored_node>(texts * static_cast<std::size_t>(first_of(options_.depth + 1)));
    scores_ = device_array<double>(texts * beam);
    asked_ = device_array<node_id>(texts * beam);
    tokens_ = device_array<token_id>(texts * beam * beam);
    probabilities_ = device_array<float>(tokens_.size());
    was_ = device_array<node_id>(texts * (static_cast<std::size_t>(options_.budget) + 1));
  }
  void reserve_asked(std::int32_t max_texts) { reserve(max_texts); }

  node_list begin(const text_batch&, cudaStream_t) {
    level_ = 0;
    return wanted();
  }

  node_list take(const text_batch& texts, const text_rows& rows, cudaStream_t stream) {
    const node_list asked = wanted();
    const child_lists best{.tokens = tokens_.data(), .probabilities = probabilities_.data(), .k = options_.beam};
    top_children(rows.rows.vocab).find(texts, rows, asked, best, stream);
    const std::int32_t first = first_of(level_++);
    const detail::scored_nodes nodes{nodes_.data(), scores_.data(), first_of(options_.depth + 1), options_.beam};
    launch("consider_level", detail::consider_level<detail::scored_nodes>,
           {.grid = texts.lanes(),
            .threads = detail::beam_threads,
            .shared_bytes = sizeof(detail::best_of_list<detail::beam_threads>::memory)},
           stream, texts, asked, best, nodes, first, asked_.data(), wanted().n);
    if (wanted().n == 0) options_.budget <= 256 ? keep<256>(texts, nodes, stream) : keep<1024>(texts, nodes, stream);
    return wanted();
  }

  void observe(const text_batch&, const verdict*, cudaStream_t) const {}

 private:
  node_list wanted() const {
    if (level_ == 0) return {root_.data(), 1, 0};
    return {asked_.data(), level_ <= options_.depth ? options_.beam : 0, options_.beam};
  }

  // Index in `all` at which the children of a level's nodes begin.
  std::int32_t first_of(std::int32_t level) const {
    return level == 0 ? 0 : options_.beam * (1 + (level - 1) * options_.beam);
  }

  template <std::int32_t threadsN>
  void keep(const text_batch& texts, const detail::scored_nodes& nodes, cudaStream_t stream) const {
    launch("keep_considered", detail::keep_considered<threadsN, detail::scored_nodes>,
           {.grid = texts.lanes(),
            .threads = static_cast<unsigned>(threadsN),
            .shared_bytes = sizeof(detail::rebuild_memory<threadsN>)},
           stream, texts, nodes, options_.budget, was_.data());
  }

  eagle2_options options_;
  std::int32_t level_ = 0;
  device_array<node_id> root_{std::span(&root_node, 1)};
  device_array<detail::scored_node> nodes_;  // [texts][beam + depth * beam * beam]
  device_array<double> scores_;              // [texts][beam]
  device_array<node_id> asked_;              // [texts][beam]
  device_array<token_id> tokens_;            // [texts][nodes asked about][beam]
  device_array<float> probabilities_;
  device_array<node_id> was_;  // [texts][budget + 1]
};

}  // namespace espalier::cuda
