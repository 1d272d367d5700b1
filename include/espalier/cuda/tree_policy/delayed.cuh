// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/log_prob.hpp"

namespace espalier::cuda {

namespace detail {

// Paths that grow side by side, in the memory of the device.
struct growing_paths {
  static constexpr std::int32_t most = 64;

  node_id* ends;    // [paths] where each path stands; no_node for one whose row had nothing to give
  token_id* drawn;  // [paths] its next token
  node_id* asked;   // [paths] the ends, each once, then no_node
  std::int32_t* n;  // [1] paths that get a token more
};

// A thread a path: all paths begin at the root.
template <class TreeT>
ESPALIER_KERNEL void start_paths(TreeT tree, growing_paths paths, std::int32_t n_first, std::int32_t n_paths) {
  const auto p = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t left = tree.size->limit - tree.size->n_draws;
  const std::int32_t n = left < n_first ? left : n_first;
  if (p < n_paths) {
    paths.ends[p] = root_node;
    paths.asked[p] = p == 0 && n > 0 ? root_node : no_node;
  }
  if (p == 0) *paths.n = n;
}

// A team a path.
template <class RowsT>
ESPALIER_KERNEL void __launch_bounds__(row_threads)
    draw_at_ends(RowsT rows, growing_paths paths, chance_source chance) {
  const auto path = static_cast<std::int32_t>(blockIdx.x / cluster_blocks());
  if (path >= *paths.n || paths.ends[path] == no_node) return;
  team::turns turns;
  const team who(*reinterpret_cast<team::memory*>(shared_memory()), turns);
  const node_id u = paths.ends[path];
  const row_view<float, team> row(rows.rows.data + static_cast<std::ptrdiff_t>(rows.row_of[u]) * rows.rows.vocab,
                                  static_cast<std::size_t>(rows.rows.vocab), who);
  const token_id token = chance.now().pick(row, {u, path, purpose::draft});
  if (who.rank() == 0) paths.drawn[path] = token;
}

// What extend_paths works in: of each path, where it stood, what it drew and where it stands.
struct paths_memory {
  node_id from[growing_paths::most];
  node_id to[growing_paths::most];
  token_id token[growing_paths::most];       // negative: none
  std::int32_t leader[growing_paths::most];  // the first path that drew the same from the same node
};

// A thread a path, one block: adds what the paths drew, as tree_writer::draw would path by path, and lists whom to ask next. Nobody has
// drawn from these ends before.
class path_step {
 public:
  __device__ path_step(tree_writer tree, const growing_paths& paths, paths_memory& memory)
      : tree_(tree), paths_(paths), memory_(memory), size_(*tree.size), path_(static_cast<std::int32_t>(threadIdx.x)) {}

  __device__ void extend(const node_rows<float>& rows) {
    const bool takes_part = path_ < *paths_.n && paths_.ends[path_] != no_node;
    memory_.from[path_] = takes_part ? paths_.ends[path_] : no_node;
    memory_.token[path_] = takes_part ? paths_.drawn[path_] : -1;
    memory_.to[path_] = no_node;
    __syncthreads();
    memory_.leader[path_] = leader();
    __syncthreads();
    std::int32_t n_draws = 0, n_nodes = 0, draws_before = 0, nodes_before = 0;  // before its leader
    const std::int32_t leading = memory_.leader[path_];
    for (std::int32_t p = 0; p < growing_paths::most; ++p) {
      const std::int32_t draws = memory_.token[p] >= 0 ? 1 : 0;
      const std::int32_t nodes = draws != 0 && memory_.leader[p] == p ? 1 : 0;
      if (p < path_) draws_before += draws;
      if (p < leading) nodes_before += nodes;
      n_draws += draws, n_nodes += nodes;
    }
    if (memory_.token[path_] >= 0) {
      memory_.to[path_] = size_.n_nodes + nodes_before;
      if (leading == path_) add_node(rows);
      add_draw(size_.n_draws + draws_before);
    }
    __syncthreads();
    size_.n_nodes += n_nodes, size_.n_draws += n_draws;
    if (path_ == 0) *tree_.size = size_;
  }

  // For n_next paths, all at the end of the first where the trunk ends here.
  __device__ void list(std::int32_t n_next, std::int32_t n_paths, bool ends_trunk) {
    const std::int32_t left = size_.limit - size_.n_draws;
    const std::int32_t n = left < n_next ? left : n_next;
    if (path_ < n_paths) {
      paths_.ends[path_] = memory_.to[ends_trunk ? 0 : path_];
      // Entry number path_ of the list: paths on one node have one leader.
      node_id asked = no_node;
      const std::int32_t end = ends_trunk && n > 1 ? 1 : n;
      for (std::int32_t p = 0, before = 0; p < end && asked == no_node; ++p) {
        if (memory_.to[p] != no_node && memory_.leader[p] == p && before++ == path_) asked = memory_.to[p];
      }
      paths_.asked[path_] = asked;
    }
    if (path_ == 0) *paths_.n = n;
  }

 private:
  __device__ std::int32_t leader() const {
    std::int32_t p = 0;
    while (memory_.from[p] != memory_.from[path_] || memory_.token[p] != memory_.token[path_])
      ++p;
    return p;
  }

  __device__ void add_node(const node_rows<float>& rows) const {
    const node_id node = memory_.to[path_], above = memory_.from[path_];
    const token_id token = memory_.token[path_];
    const float log_prob = espalier::detail::log_prob_of(
        static_cast<double>(rows.rows.data[static_cast<std::ptrdiff_t>(rows.row_of[above]) * rows.rows.vocab + token]));
    tree_.token[node] = token;
    tree_.parent[node] = above;
    tree_.depth[node] = tree_.depth[above] + 1;
    tree_.log_prob[node] = log_prob;
    tree_.path_log_prob[node] = tree_.path_log_prob[above] + log_prob;
    tree_.first_draw[node] = tree_.last_draw[node] = -1;
  }

  __device__ void add_draw(std::int32_t draw) const {
    const node_id above = memory_.from[path_];
    bool is_first = true;
    for (std::int32_t p = 0; p < path_; ++p)
      is_first = is_first && !(memory_.from[p] == above && memory_.token[p] >= 0);
    std::int32_t next = -1;
    for (std::int32_t p = path_ + 1, skipped = 1; p < growing_paths::most && next < 0; ++p) {
      if (memory_.from[p] == above && memory_.token[p] >= 0) next = draw + skipped;
      skipped += memory_.token[p] >= 0 ? 1 : 0;
    }
    tree_.drawn_node[draw] = memory_.to[path_];
    tree_.next_draw[draw] = next;
    if (is_first) tree_.first_draw[above] = draw;
    if (next < 0) tree_.last_draw[above] = draw;
  }

  tree_writer tree_;
  growing_paths paths_;
  paths_memory& memory_;
  tree_size size_;
  std::int32_t path_;
};

template <class RowsT>
ESPALIER_KERNEL void extend_paths(tree_writer tree, RowsT rows, growing_paths paths, std::int32_t n_next,
                                  std::int32_t n_paths, bool ends_trunk) {
  path_step step(tree, paths, *reinterpret_cast<paths_memory*>(shared_memory()));
  step.extend(rows);
  step.list(n_next, n_paths, ends_trunk);
}

}  // namespace detail

//! espalier::delayed on the device: the same tree from the same rows and random numbers.
//!
//! Complexity  for each of the trunk + length tokens of a path: a draft pass of one row, or after the trunk of as many rows as there are
//!             paths, padding included; one launch that reads a row for each path; a launch of 64 threads. No allocation after
//!             construction, no synchronisation
//! Law         that of espalier::delayed
//! Errors      option_error as there. Where a row has no probability above 0, its paths end; the drafter has reported a fault
//! Source      as espalier::delayed
class delayed {
 public:
  static constexpr regime sampling = regime::iid;

  explicit delayed(delayed_options options = {}) : options_(options) {
    require_option("paths", options.paths, 1, detail::growing_paths::most);
    require_option("trunk", options.trunk, 0, 64);
    require_option("length", options.length, 0, 64);
    words_ = device_array<std::int32_t>(3 * static_cast<std::size_t>(options.paths) + 1);
  }

  std::int32_t max_nodes() const { return options_.trunk + options_.paths * options_.length; }

  template <StepDrafter DrafterT>
  void grow(tree_writer tree, DrafterT& drafter, chance_source chance, cudaStream_t stream) const {
    const std::int32_t n_levels = options_.trunk + options_.length;
    if (max_nodes() == 0) return;
    const detail::growing_paths paths = growing();
    const node_rows<float> rows = drafter.rows();
    const detail::row_tuning tuning = detail::row_tuning_here(drafter.vocab_size());
    launch("start_paths", detail::start_paths<tree_writer>, {.threads = detail::growing_paths::most}, stream, tree,
           paths, paths_at(0), options_.paths);
    for (std::int32_t i = 0; i < n_levels; ++i) {
      drafter.propose(tree, {paths.asked, i <= options_.trunk ? 1 : options_.paths}, stream);
      const launch_shape shape{.grid = dim3(static_cast<unsigned>(paths_at(i)) * tuning.blocks),
                               .threads = tuning.threads,
                               .shared_bytes = sizeof(team::memory),
                               .cluster = tuning.blocks};
      launch("draw_at_ends", detail::draw_at_ends<node_rows<float>>, shape, stream, rows, paths, chance);
      const launch_shape one_block{.threads = detail::growing_paths::most,
                                   .shared_bytes = sizeof(detail::paths_memory)};
      launch("extend_paths", detail::extend_paths<node_rows<float>>, one_block, stream, tree, rows, paths,
             paths_at(i + 1), options_.paths, i + 1 == options_.trunk);
    }
  }

  void observe(tree_writer, const verdict*, cudaStream_t) const {}

 private:
  // Paths that grow at a level.
  std::int32_t paths_at(std::int32_t level) const {
    if (level >= options_.trunk + options_.length) return 0;
    return level < options_.trunk ? 1 : options_.paths;
  }

  detail::growing_paths growing() const {
    std::int32_t* words = words_.data();
    return {words, words + options_.paths, words + 2 * options_.paths, words + 3 * options_.paths};
  }

  delayed_options options_;
  device_array<std::int32_t> words_;
};

}  // namespace espalier::cuda
