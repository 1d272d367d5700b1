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
#include "espalier/cuda/tree_policy/growth/grow_level.cuh"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/sampling/undrawn.hpp"
#include "espalier/tree_policy/sequoia.hpp"

namespace espalier::cuda {

namespace detail {

// A level of a tree of a fixed shape, for grow_level, in the memory of the device: the draws of its nodes, which are
// made while the tree stays as it is.
//
// Shapes      n_children, first_child [nodes of the shape]; before: -1, 0, 1, .. [children of a node + 1]; children
//             [places][entries][k]; last [places][entries]: number of the last draw of an entry; shape_of
//             [places][n_nodes]: which node of the shape a node of the tree is
struct shape_step {
  const std::int32_t* n_children;
  const std::int32_t* first_child;
  const std::int32_t* before;
  child_lists children;
  std::int32_t* last;
  std::int32_t* shape_of;
  const node_id* asked;  // of one text
  std::int32_t n_entries;
  std::int32_t n_nodes;
  std::int32_t stride;  // of the list of nodes asked about

  __device__ shape_step of(std::int32_t place) const {
    shape_step own = *this;
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(place) * n_entries;
    own.children.tokens += first * children.k;
    own.children.log_probs += first * children.k;
    own.last += first;
    own.shape_of += static_cast<std::ptrdiff_t>(place) * n_nodes;
    own.asked += static_cast<std::ptrdiff_t>(place) * stride;
    return own;
  }

  __device__ std::int32_t node_of_shape(node_id u) const { return u == root_node ? 0 : shape_of[u]; }
  __device__ std::int32_t budget() const { return n_nodes - 1; }
  __device__ std::int32_t n_draws(std::int32_t entry, node_id) const { return last[entry] + 1; }
  __device__ bool expands(const tree_writer&, node_id node, std::ptrdiff_t at) const {
    const auto entry = static_cast<std::int32_t>(at / children.k), rank = static_cast<std::int32_t>(at % children.k);
    const std::int32_t own = first_child[node_of_shape(asked[entry])] + rank;
    shape_of[node] = own;
    return n_children[own] > 0;
  }
  __device__ void ask(node_id, std::ptrdiff_t) const {}

  // The draws of an entry as those of a tree's root, the last one first.
  __device__ tree_view draws_of(std::int32_t entry) const {
    tree_view view;
    view.token = children.tokens + static_cast<std::ptrdiff_t>(entry) * children.k;
    view.first_draw = last + entry;
    view.next_draw = before;
    view.drawn_node = before + 1;
    return view;
  }
};

// A team an entry of the list, along x, of each lane, along y: as many draws as the shape has children.
template <class RowsT>
ESPALIER_KERNEL void __launch_bounds__(row_threads)
    draw_shape(text_batch texts, RowsT all_rows, shape_step steps, node_list asked) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const std::int32_t entry = team::number();
  const node_id u = asked.of(here.place)[entry];
  if (u == no_node) return;
  const shape_step step = steps.of(here.place);
  team::turns turns;
  const team who(*reinterpret_cast<team::memory*>(shared_memory()), turns);
  if (who.rank() == 0) step.last[entry] = -1;
  who.sync();
  const undrawn row(step.draws_of(entry), root_node, row_view(all_rows.of(here.place), u, who));
  const std::int32_t left = here.tree.left(), wanted = step.n_children[step.node_of_shape(u)];
  for (std::int32_t n = 0; n < wanted && n < left; ++n) {
    const undrawn_draw drawn = row.draw(here.chance(), {u, n, purpose::draft});
    who.sync();  // all have looked at the list
    if (drawn.token < 0) break;
    if (who.rank() == 0) {
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(entry) * step.children.k + n;
      step.children.tokens[at] = drawn.token;
      step.children.log_probs[at] = espalier::detail::log_prob_of(drawn.probability);
      step.last[entry] = n;
    }
    who.sync();
  }
}

}  // namespace detail

//! espalier::sequoia on the device: the same tree from the same rows and random numbers.
//!
//! Complexity  as espalier::sequoia_shapes to build; for each level of the shape a draft pass with as many rows as
//!             nodes of the level have children, padding included; a launch in which a cluster draws from each row; a
//!             launch of one block. No allocation after reserve, no synchronisation
//! Law         that of espalier::sequoia
//! Errors      option_error for options out of range; otherwise as espalier::sequoia_shapes
//! Source      as espalier::sequoia
class sequoia {
 public:
  static constexpr regime sampling = regime::without_replacement;

  explicit sequoia(sequoia_options options = {},
                   std::span<const double> acceptance = espalier::sequoia::default_acceptance) {
    static_assert(sequoia_shapes::max_budget <= detail::level_draws);
    const espalier::sequoia shape(options, acceptance);
    const std::span<const std::int32_t> n_children = shape.children();
    max_nodes_ = shape.max_nodes();
    // Level after level: the children of a level are the next.
    std::vector<std::int32_t> first_child;
    std::int32_t next = 1;
    for (const std::int32_t n : n_children) {
      first_child.push_back(next);
      next += n;
      most_children_ = (std::max)(most_children_, n);
    }
    for (std::size_t begin = 0, end = 1; begin < end;) {
      std::int32_t width = 0;
      std::size_t next_end = end;
      for (; begin < end; ++begin) {
        width += n_children[begin] > 0 ? 1 : 0;
        next_end += static_cast<std::size_t>(n_children[begin]);
      }
      widths_.push_back(width);
      widest_ = (std::max)(widest_, width);
      end = next_end;
    }
    n_children_ = device_array<std::int32_t>(n_children);
    first_child_ = device_array<std::int32_t>(std::span<const std::int32_t>(first_child));
    std::vector<std::int32_t> before(static_cast<std::size_t>(most_children_) + 1);
    std::iota(before.begin(), before.end(), -1);
    before_ = device_array<std::int32_t>(std::span<const std::int32_t>(before));
    reserve(1);
  }

  std::int32_t max_nodes() const { return max_nodes_; }

  void reserve(std::int32_t max_texts) {
    const auto texts = static_cast<std::size_t>(max_texts);
    asked_ = device_array<node_id>(texts * static_cast<std::size_t>(widest_));
    last_ = device_array<std::int32_t>(asked_.size());
    tokens_ = device_array<token_id>(asked_.size() * static_cast<std::size_t>(most_children_));
    log_probs_ = device_array<float>(tokens_.size());
    shape_of_ = device_array<std::int32_t>(texts * (static_cast<std::size_t>(max_nodes_) + 1));
  }

  node_list begin(const text_batch&, cudaStream_t) {
    level_ = 0;
    return wanted();
  }

  node_list take(const text_batch& texts, const text_rows& rows, cudaStream_t stream) {
    const node_list asked = wanted();
    const detail::shape_step step{
        n_children_.data(), first_child_.data(),
        before_.data(),     {.tokens = tokens_.data(), .log_probs = log_probs_.data(), .k = most_children_},
        last_.data(),       shape_of_.data(),
        asked.nodes,        asked.n,
        max_nodes_ + 1,     asked.stride};
    launch("draw_shape", detail::draw_shape<text_rows>,
           detail::row_tuning_here(rows.rows.vocab).shape(asked.n, sizeof(team::memory), texts.n), stream, texts, rows,
           step, asked);
    ++level_;
    detail::launch_level(texts, step, asked, {asked_.data(), wanted().n, widest_}, stream);
    return wanted();
  }

  void observe(const text_batch&, const verdict*, cudaStream_t) const {}

 private:
  node_list wanted() const {
    const std::int32_t n = level_ < widths_.size() ? widths_[level_] : 0;
    return level_ == 0 ? node_list{root_.data(), n, 0} : node_list{asked_.data(), n, widest_};
  }

  std::int32_t max_nodes_ = 0;
  std::int32_t most_children_ = 0;
  std::vector<std::int32_t> widths_;  // of each level, nodes that have children
  std::int32_t widest_ = 0;
  std::size_t level_ = 0;
  device_array<node_id> root_{std::span(&root_node, 1)};
  device_array<std::int32_t> n_children_;   // [nodes of the shape]
  device_array<std::int32_t> first_child_;  // likewise
  device_array<std::int32_t> before_;       // [most_children + 1]
  device_array<node_id> asked_;             // [texts][widest]
  device_array<std::int32_t> last_;         // [texts][nodes asked about]
  device_array<token_id> tokens_;           // [texts][nodes asked about][most_children]
  device_array<float> log_probs_;
  device_array<std::int32_t> shape_of_;  // [texts][max_nodes + 1]
};

}  // namespace espalier::cuda
