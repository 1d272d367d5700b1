// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

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
#include "espalier/cuda/core/sum_before.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/cuda/tree_policy/growth/append_draws.cuh"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/tree_policy/specinfer_static.hpp"

namespace espalier::cuda {

namespace detail {

// The independent draws of a level, `slots` draws from each node that was asked about, in the memory of the device.
// Draw i is draw i % slots of entry i / slots of `asked`.
//
// Shapes      tokens [places][stride]
struct independent_draws {
  node_list asked;
  token_id* tokens;
  std::int32_t n;       // number of draws that launches are made for
  std::int32_t slots;   // draws from each node
  std::int32_t budget;  // draws of the tree, at most
  std::int32_t stride;

  __device__ token_id* tokens_of(std::int32_t place) const {
    return tokens + static_cast<std::ptrdiff_t>(place) * stride;
  }
  // Returns the node that draw i is from; no_node if there is no draw i. In `asked`, nodes stand before the unused
  // entries. `left`: how many draws the tree still has room for.
  __device__ node_id above(const text_in_batch& here, std::int32_t i, std::int32_t left) const {
    return i < n && i < left ? asked.of(here.place)[i / slots] : no_node;
  }
};

// Makes the draws: grid column x is a team for draw x, grid row y is lane y.
template <class RowsT>
ESPALIER_KERNEL void __launch_bounds__(row_threads)
    draw_independently(text_batch texts, RowsT all_rows, independent_draws level) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const std::int32_t i = team::number();
  const node_id u = level.above(here, i, here.tree.left(level.budget));
  if (u == no_node) return;
  team::turns turns;
  const team who(*reinterpret_cast<team::memory*>(shared_memory()), turns);
  const row_view row(all_rows.of(here.place), u, who);
  const token_id token = here.chance().pick(row, {u, i % level.slots, purpose::draft});
  if (who.rank() == 0) level.tokens_of(here.place)[i] = token;
}

struct independent_memory {
  static constexpr std::int32_t most = 1024;

  warp_sums sums;
  token_id token[most];     // by draw; -1 if there is none
  std::int32_t node[most];  // by draw that has a new node: the number of new nodes before it
};

// Appends the draws as tree_writer::draw does, one after the other; a block works for a lane, a thread for a draw.
// Draws of the same token from one node share a node. The first n_next new nodes are asked about next, but no more than
// the draws that are left, so that each can still get one.
//
// Shapes      next [places][stride]
template <class RowsT>
ESPALIER_KERNEL void __launch_bounds__(independent_memory::most)
    append_independent(text_batch texts, RowsT all_rows, independent_draws level, node_id* next, std::int32_t n_next) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  auto& memory = *reinterpret_cast<independent_memory*>(shared_memory());
  const tree_writer& tree = here.tree;
  const auto i = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t slot = i % level.slots;
  const tree_size size = *tree.size;
  const std::int32_t left = size.left(level.budget);
  const node_id u = level.above(here, i, left);
  const token_id token = u == no_node ? -1 : level.tokens_of(here.place)[i];
  memory.token[i] = token;
  __syncthreads();
  std::int32_t leader = i - slot;  // the first draw of the same token from the same node
  while (memory.token[leader] != token)
    ++leader;
  const bool is_there = token >= 0, leads = is_there && leader == i;
  // One sum counts both: draws in the upper half of the word, nodes in the lower half.
  const running_sum sum = sum_before((is_there ? 1 << 16 : 0) + (leads ? 1 : 0), memory.sums);
  memory.node[i] = sum.before & 0xFFFF;
  __syncthreads();
  const std::int32_t n_draws = sum.all >> 16, n_nodes = sum.all & 0xFFFF;
  append_draws(tree, size, is_there ? i + 1 : 0, n_nodes, n_draws, [&](std::int32_t) {
    const float log_prob = espalier::detail::log_prob_of(static_cast<double>(all_rows.of(here.place).at(u)[token]));
    listed_draw own = listed_draw::of(tree, u, token, log_prob);
    own.number = sum.before >> 16;
    own.node = memory.node[leader];
    own.is_first = slot == 0;
    own.is_new = leads;
    if (slot + 1 < level.slots && i + 1 < level.n && memory.token[i + 1] >= 0) own.next = own.number + 1;
    return own;
  });
  const std::int32_t room = left - n_draws, n_asked = n_nodes < room ? n_nodes : room;
  for (std::int32_t k = i; k < n_next; k += independent_memory::most)
    next[static_cast<std::ptrdiff_t>(here.place) * level.stride + k] = k < n_asked ? size.n_nodes + k : no_node;
}

}  // namespace detail

//! espalier::specinfer_static on the device: the same tree from the same rows and random numbers.
//!
//! Complexity  for each level: a draft pass with as many rows as it may ask about, padding included; a launch in which
//!             a team makes each draw; a launch of one block. No allocation after reserve, no synchronisation
//! Law         as espalier::specinfer_static
//! Errors      option_error for options out of range. A row that has no probability above 0 gives no draws; the drafter
//!             has reported a fault then
//! Source      as espalier::specinfer_static
class specinfer_static {
 public:
  static constexpr regime sampling = regime::iid;

  explicit specinfer_static(specinfer_static_options options = {})
      : draws_{options.level_1, options.level_2, options.level_3, options.level_4,
               options.level_5, options.level_6, options.level_7, options.level_8},
        max_nodes_(espalier::specinfer_static(options).max_nodes()) {
    static_assert(option_of(&specinfer_static_options::budget).high() <= detail::independent_memory::most);
    reserve(1);
  }

  std::int32_t max_nodes() const { return max_nodes_; }

  void reserve(std::int32_t max_texts) {
    drawn_ = device_array<token_id>(static_cast<std::size_t>(max_nodes_) * static_cast<std::size_t>(max_texts));
    asked_ = device_array<node_id>(drawn_.size());
  }

  node_list begin(const text_batch&, cudaStream_t) {
    level_ = 0;
    return wanted();
  }

  node_list take(const text_batch& texts, const text_rows& rows, cudaStream_t stream) {
    const std::int32_t slots = draws_[level_];
    const node_list asked = wanted();
    const std::int32_t n = (std::min)(asked.n * slots, max_nodes_ - static_cast<std::int32_t>(level_));
    const detail::independent_draws level{asked, drawn_.data(), n, slots, max_nodes_, max_nodes_};
    launch("draw_independently", detail::draw_independently<text_rows>,
           detail::row_tuning_here(rows.rows.vocab).shape(n, sizeof(team::memory), texts.n), stream, texts, rows,
           level);
    ++level_;
    launch("append_independent", detail::append_independent<text_rows>,
           {.grid = texts.lanes(),
            .threads = detail::independent_memory::most,
            .shared_bytes = sizeof(detail::independent_memory)},
           stream, texts, rows, level, asked_.data(), wanted().n);
    return wanted();
  }

  void observe(const text_batch&, const verdict*, cudaStream_t) const {}

 private:
  node_list wanted() const {
    const std::int32_t n = width(level_);
    return level_ == 0 ? node_list{root_.data(), n, 0} : node_list{asked_.data(), n, max_nodes_};
  }

  // Returns the largest number of nodes of this level that may be asked about: one for each draw that led there, but no
  // more than can still get a draw within the budget.
  std::int32_t width(std::size_t level) const {
    if (level == draws_.size() || draws_[level] == 0 || max_nodes_ == 0) return 0;
    const std::int32_t most = (max_nodes_ - static_cast<std::int32_t>(level) + 1) / 2;
    std::int32_t n = 1;
    for (std::size_t above = 0; above < level && n < most; ++above)
      n *= draws_[above];
    return level == 0 ? 1 : (std::max)((std::min)(n, most), std::int32_t{0});
  }

  std::array<std::int32_t, 8> draws_;  // number of draws from each node, by level
  std::int32_t max_nodes_ = 0;
  std::size_t level_ = 0;
  device_array<node_id> root_{std::span(&root_node, 1)};
  device_array<token_id> drawn_;  // [texts][max_nodes]
  device_array<node_id> asked_;   // [texts][max_nodes]
};

}  // namespace espalier::cuda
