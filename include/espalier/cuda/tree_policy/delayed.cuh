// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
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
#include "espalier/cuda/tree_policy/growth/append_draws.cuh"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/tree_policy/delayed.hpp"

namespace espalier::cuda {

namespace detail {

// The shapes of the delayed trees of a round's texts. In the memory of the device if each text has its own; passed by
// value into kernels.
//
// Shapes      own [places]; nullptr if all texts have the shape `all`
struct delayed_shapes {
  delayed_options all;
  const delayed_options* own = nullptr;
  std::int32_t paths = all.paths;                // number of paths of the widest shape
  std::int32_t levels = all.trunk + all.length;  // number of tokens of the longest path of any shape

  ESPALIER_HOST_DEVICE delayed_options of(std::int32_t place) const { return own == nullptr ? all : own[place]; }

  // Returns the number of paths that launches are made for when the longest path has `level` tokens.
  std::int32_t paths_at(std::int32_t level) const {
    if (own == nullptr) return all.paths_at(level);
    return level < levels ? paths : 0;
  }
};

// Paths that grow side by side, in the memory of the device.
//
// Shapes      [places][paths]; `from` is [paths] if all texts begin alike
struct growing_paths {
  node_list from;   // the end of each path; no_node if its last row gave no token
  token_id* drawn;  // the next token of each path
  node_id* ends;    // the end of each path after that token
  node_id* asked;   // the different ends, each once; the rest is no_node
  std::int32_t n;   // number of paths

  // The paths of one text.
  __device__ growing_paths of(std::int32_t place) const {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(place) * n;
    return {{from.of(place), from.n, 0}, drawn + first, ends + first, asked + first, n};
  }
};

// Draws the next token of each path: grid column x is a team for path x, grid row y is lane y.
template <class RowsT>
ESPALIER_KERNEL void __launch_bounds__(row_threads)
    draw_at_ends(text_batch texts, RowsT all_rows, growing_paths all_paths, delayed_shapes shapes, std::int32_t level) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const growing_paths paths = all_paths.of(here.place);
  const std::int32_t path = team::number();
  const node_id u = paths.from.nodes[path];
  if (path >= here.tree.size->left() || path >= shapes.of(here.place).paths_at(level) || u == no_node) return;
  team::turns turns;
  const team who(*reinterpret_cast<team::memory*>(shared_memory()), turns);
  const row_view row(all_rows.of(here.place), u, who);
  const token_id token = here.chance().pick(row, {u, path, purpose::draft});
  if (who.rank() == 0) paths.drawn[path] = token;
}

// Adds the tokens that the paths drew at this level; a block works for a lane, a thread for a path. Lists the nodes to
// ask about for the next level. If the trunk ends here, all paths go on from the end of the first path. Pre: nothing
// has been drawn before from the nodes at which the paths end
template <class RowsT>
ESPALIER_KERNEL void extend_paths(text_batch texts, RowsT all_rows, growing_paths all_paths, delayed_shapes shapes,
                                  std::int32_t level) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const tree_writer& tree = here.tree;
  const node_rows<float> rows = all_rows.of(here.place);
  const growing_paths paths = all_paths.of(here.place);
  const delayed_options shape = shapes.of(here.place);
  const std::int32_t n_now = shape.paths_at(level), n_next = shape.paths_at(level + 1);
  const auto path = static_cast<std::int32_t>(threadIdx.x);
  const tree_size size = *tree.size;
  const std::int32_t left = size.left();
  const node_id from = path < left && path < n_now ? paths.from.nodes[path] : no_node;
  const token_id token = from == no_node ? -1 : paths.drawn[path];
  const node_id above = token < 0 ? no_node : from;
  const mixed_draws draws(*reinterpret_cast<mixed_draws::memory*>(shared_memory()), above, token);
  listed_draw own;
  if (above != no_node) {
    const float log_prob = espalier::detail::log_prob_of(static_cast<double>(rows.at(above)[token]));
    own = draws.placed(listed_draw::of(tree, above, token, log_prob));
  }
  append_draws(tree, size, mixed_draws::most, draws.n_nodes(), draws.n_draws(), [&](std::int32_t) { return own; });
  // The new nodes are numbered in the order of the draws that gave them.
  const std::int32_t n = left - draws.n_draws() < n_next ? left - draws.n_draws() : n_next;
  const std::int32_t n_asked = __syncthreads_count(draws.leads() && path < n);
  if (path >= paths.n) return;
  const bool has_end = level + 1 == shape.trunk ? draws.n_draws() > 0 : above != no_node;
  paths.ends[path] = has_end ? size.n_nodes + own.node : no_node;
  paths.asked[path] = path < n_asked ? size.n_nodes + path : no_node;
}

// The growth of the trees of `delayed`, level by level.
class delayed_growth {
 public:
  // Takes memory for trees of at most n_paths paths. Pre: n_paths <= mixed_draws::most
  explicit delayed_growth(std::int32_t n_paths) {
    const auto paths = static_cast<std::size_t>(n_paths);
    roots_ = device_array<node_id>(std::span<const node_id>(std::vector<node_id>(paths, root_node)));
    reserve(1);
  }

  void reserve(std::int32_t max_texts) {
    const std::size_t paths = roots_.size() * static_cast<std::size_t>(max_texts);
    drawn_ = device_array<token_id>(paths);
    ends_ = device_array<node_id>(paths);
    asked_ = device_array<node_id>(paths);
  }

  // Begins a round; returns the root, or nothing if no path gets a token.
  node_list begin(const delayed_shapes& shapes) {
    level_ = 0;
    return wanted(shapes);
  }

  // Enqueues one more token for each path, and returns the nodes at which the paths end then.
  node_list take(const text_batch& texts, const text_rows& rows, const delayed_shapes& shapes, cudaStream_t stream) {
    const row_tuning tuning = row_tuning_here(rows.rows.vocab);
    const auto n = static_cast<std::int32_t>(roots_.size());
    const std::int32_t n_now = shapes.paths_at(level_);
    if (n_now == 0) return {};
    const node_list from = level_ == 0 ? node_list{roots_.data(), n, 0} : node_list{ends_.data(), n, n};
    const growing_paths paths{from, drawn_.data(), ends_.data(), asked_.data(), n};
    launch("draw_at_ends", draw_at_ends<text_rows>, tuning.shape(n_now, sizeof(team::memory), texts.n), stream, texts,
           rows, paths, shapes, level_);
    const launch_shape one_block{
        .grid = texts.lanes(), .threads = mixed_draws::most, .shared_bytes = sizeof(mixed_draws::memory)};
    launch("extend_paths", extend_paths<text_rows>, one_block, stream, texts, rows, paths, shapes, level_);
    ++level_;
    return wanted(shapes);
  }

 private:
  // Returns the nodes at the ends of the paths that grow now. When the trunk of all texts has just ended, this is one
  // node for all paths.
  node_list wanted(const delayed_shapes& shapes) const {
    const std::int32_t n = shapes.paths_at(level_);
    if (level_ == 0) return {roots_.data(), n > 0 ? 1 : 0, 0};
    const bool is_one = shapes.own == nullptr && level_ == shapes.all.trunk && n > 0;
    return {asked_.data(), is_one ? 1 : n, static_cast<std::int32_t>(roots_.size())};
  }

  std::int32_t level_ = 0;        // number of tokens of the longest path
  device_array<node_id> roots_;   // [paths] the root, where all paths begin
  device_array<token_id> drawn_;  // [texts][paths]
  device_array<node_id> ends_;    // [texts][paths]
  device_array<node_id> asked_;   // [texts][paths]
};

}  // namespace detail

//! espalier::delayed on the device: the same tree from the same rows and random numbers.
//!
//! Complexity  for each of the trunk + length tokens of a path: a draft pass of one row for the trunk's tokens and the
//!             first one after it, and of as many rows as there are paths for the others, padding included; one launch
//!             that reads a row for each path; a launch of 64 threads a text. No allocation after reserve, no
//!             synchronisation
//! Law         as espalier::delayed
//! Errors      option_error for options out of range. If a row has no probability above 0, the paths that end at its
//!             node go no further; the drafter has reported a fault then
//! Source      as espalier::delayed
class delayed {
 public:
  static constexpr regime sampling = regime::iid;

  explicit delayed(delayed_options options = {}) : shapes_{require_options(options)}, growth_(options.paths) {
    static_assert(option_of(&delayed_options::paths).high() <= detail::mixed_draws::most);
  }

  std::int32_t max_nodes() const { return shapes_.all.max_nodes(); }

  void reserve(std::int32_t max_texts) { growth_.reserve(max_texts); }

  node_list begin(const text_batch&, cudaStream_t) { return growth_.begin(shapes_); }

  node_list take(const text_batch& texts, const text_rows& rows, cudaStream_t stream) {
    return growth_.take(texts, rows, shapes_, stream);
  }

  void observe(const text_batch&, const verdict*, cudaStream_t) const {}

 private:
  detail::delayed_shapes shapes_;
  detail::delayed_growth growth_;
};

}  // namespace espalier::cuda
