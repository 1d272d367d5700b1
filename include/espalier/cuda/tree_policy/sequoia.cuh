// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/option.hpp"
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
#include "espalier/cuda/tree_policy/growth/drawn_children.cuh"
#include "espalier/cuda/tree_policy/growth/grow_level.cuh"
#include "espalier/sampling/undrawn.hpp"
#include "espalier/tree_policy/sequoia.hpp"

namespace espalier::cuda {

namespace detail {

// A step of grow_level for a tree of a fixed shape, in the memory of the device.
//
// Shapes      n_children, first_child [nodes of the shape]; shape_of [places][n_nodes]: for each node of the tree, the
//             node of the shape whose position it has
struct shape_step : drawn_children_view {
  const std::int32_t* n_children;
  const std::int32_t* first_child;
  std::int32_t* shape_of;
  node_list asked;
  std::int32_t n_nodes;

  __device__ shape_step of(std::int32_t place) const {
    shape_step own{drawn_children_view::of(place), n_children, first_child, shape_of, asked, n_nodes};
    own.shape_of += static_cast<std::ptrdiff_t>(place) * n_nodes;
    own.asked.nodes = asked.of(place);
    return own;
  }

  __device__ std::int32_t node_of_shape(node_id u) const { return u == root_node ? 0 : shape_of[u]; }
  __device__ std::int32_t budget() const { return n_nodes - 1; }
  __device__ bool enter(const tree_writer&, node_id node, std::ptrdiff_t at) const {
    const auto entry = static_cast<std::int32_t>(at / children.k), rank = static_cast<std::int32_t>(at % children.k);
    const std::int32_t own = first_child[node_of_shape(asked.nodes[entry])] + rank;
    shape_of[node] = own;
    return n_children[own] > 0;
  }
  __device__ void ask(node_id, std::ptrdiff_t) const {}
};

// Makes as many draws from the row of each node as the shape says that the node has children, fewer if the tree or the
// row has no more: grid column x is a team for entry x of the list, grid row y is lane y.
template <class RowsT>
ESPALIER_KERNEL void __launch_bounds__(row_threads) draw_shape(text_batch texts, RowsT all_rows, shape_step steps) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const std::int32_t entry = team::number();
  const shape_step step = steps.of(here.place);
  const node_id u = step.asked.nodes[entry];
  if (u == no_node) return;
  team::turns turns;
  const team who(*reinterpret_cast<team::memory*>(shared_memory()), turns);
  if (who.rank() == 0) step.last[entry] = -1;
  who.sync();
  const undrawn row(step.tree_of(entry), root_node, row_view(all_rows.of(here.place), u, who));
  const std::int32_t left = here.tree.left(), wanted = step.n_children[step.node_of_shape(u)];
  for (std::int32_t n = 0; n < wanted && n < left; ++n) {
    const undrawn_draw drawn = row.draw(here.chance(), {u, n, purpose::draft});
    who.sync();  // all threads have read the list
    if (drawn.token < 0) break;
    if (who.rank() == 0) step.add(entry, drawn);
    who.sync();
  }
}

}  // namespace detail

//! espalier::sequoia on the device: the same tree from the same rows and random numbers.
//!
//! Complexity  constructor: as espalier::sequoia_shapes. A round: for each level of the shape a draft pass with one row
//!             for each node of the level that has children, padding included; a launch in which a cluster draws from
//!             each row; a launch of one block. No allocation after reserve, no synchronisation
//! Law         as espalier::sequoia
//! Errors      option_error for options out of range; otherwise as espalier::sequoia_shapes
//! Source      as espalier::sequoia
class sequoia {
 public:
  static constexpr regime sampling = regime::without_replacement;

  explicit sequoia(sequoia_options options = {}) {
    static_assert(sequoia_shapes::max_budget <= detail::level_draws);
    const espalier::sequoia shape(options);
    const std::span<const std::int32_t> n_children = shape.children();
    max_nodes_ = shape.max_nodes();
    // The nodes of a shape are numbered level by level, so the children of one level are the next level.
    std::vector<std::int32_t> first_child(n_children.size());
    std::exclusive_scan(n_children.begin(), n_children.end(), first_child.begin(), 1);
    n_children_ = device_array<std::int32_t>(n_children);
    first_child_ = device_array<std::int32_t>(std::span<const std::int32_t>(first_child));
    levels_ = detail::asked_levels(widths(n_children));
    drawn_ = detail::drawn_children(*std::max_element(n_children.begin(), n_children.end()));
    reserve(1);
  }

  std::int32_t max_nodes() const { return max_nodes_; }

  void reserve(std::int32_t max_texts) {
    levels_.reserve(max_texts);
    drawn_.reserve(max_texts, levels_.widest());
    shape_of_ =
        device_array<std::int32_t>(static_cast<std::size_t>(max_texts) * (static_cast<std::size_t>(max_nodes_) + 1));
  }

  node_list begin(const text_batch&, cudaStream_t) { return levels_.begin(); }

  node_list take(const text_batch& texts, const text_rows& rows, cudaStream_t stream) {
    const node_list asked = levels_.wanted();
    const detail::shape_step step{
        drawn_.view(asked.n), n_children_.data(), first_child_.data(), shape_of_.data(), asked, max_nodes_ + 1};
    launch("draw_shape", detail::draw_shape<text_rows>,
           detail::row_tuning_here(rows.rows.vocab).shape(asked.n, sizeof(team::memory), texts.n), stream, texts, rows,
           step);
    return levels_.grow(texts, step, stream);
  }

  void observe(const text_batch&, const verdict*, cudaStream_t) const {}

 private:
  // Returns, for each level, how many of its nodes have children.
  static std::vector<std::int32_t> widths(std::span<const std::int32_t> n_children) {
    std::vector<std::int32_t> all;
    for (std::size_t begin = 0, end = 1; begin < end;) {
      std::int32_t width = 0;
      std::size_t next_end = end;
      for (; begin < end; ++begin) {
        width += n_children[begin] > 0 ? 1 : 0;
        next_end += static_cast<std::size_t>(n_children[begin]);
      }
      all.push_back(width);
      end = next_end;
    }
    return all;
  }

  std::int32_t max_nodes_ = 0;
  device_array<std::int32_t> n_children_;   // [nodes of the shape]
  device_array<std::int32_t> first_child_;  // [nodes of the shape]
  device_array<std::int32_t> shape_of_;     // [texts][max_nodes + 1]
  detail::asked_levels levels_;
  detail::drawn_children drawn_;
};

}  // namespace espalier::cuda
