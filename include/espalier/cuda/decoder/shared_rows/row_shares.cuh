// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/sum_before.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/decoder/shared_rows/text_gains.cuh"

//! How the rows of a pass are shared out over texts, and how the texts' trees are cut to their shares.
namespace espalier::cuda::detail {

// The share of a text: all its rows in bins better than `bin`, and n_in_bin of its rows in `bin`.
struct tree_share {
  std::int32_t bin;
  std::int32_t n_in_bin;
};

// The arrays of share_rows. Shapes: gains, shares [places]; expected [n_sizes]
struct share_arrays {
  const text_gains* gains;
  tree_share* shares;
  float* expected;           // entry i: tokens that all texts would gain if the pass had 2^i rows for each lane
  std::ptrdiff_t from_next;  // number of floats from one entry to the next
  std::int32_t n_sizes;
};

inline constexpr unsigned share_threads = 256;

struct share_memory {
  std::int32_t rows[gain_bins];        // rows in a bin, of all texts
  std::int32_t before[gain_bins + 1];  // rows in the bins before it
  warp_sums sums;
  std::int32_t roots;   // number of lanes that are not empty
  std::int32_t limits;  // sum of the limits of all trees
  tree_share all;       // the share of all texts together, as if they were one text
  std::int32_t even;    // rows that each text gets besides, if all bins leave rows over
};

// Shares out `n_rows` rows over all lanes, roots included: the rows that gain most; among rows of the same bin, those
// of the first lanes. Run by one block. If rows are shared before trees are drawn, each tree's limit becomes its text's
// share, and rows that are left are divided evenly; if there is room for the largest trees, the limits stay the same.
template <class GainsT>
ESPALIER_KERNEL void __launch_bounds__(share_threads)
    share_rows(text_batch texts, share_arrays arrays, std::int32_t n_rows) {
  auto& m = *reinterpret_cast<share_memory*>(shared_memory());
  const auto thread = static_cast<std::int32_t>(threadIdx.x), warp = thread / 32;
  constexpr auto threads = static_cast<std::int32_t>(share_threads), warps = threads / 32;
  static_assert(gain_bins == threads);
  const auto each_lane = [&](const auto& f) {
    for (std::int32_t lane = warp; lane < texts.n; lane += warps) {
      const text_in_batch here = texts.at(lane);
      if (here.place >= 0) f(here, GainsT::of(here, arrays.gains[here.place]));
    }
  };
  m.rows[thread] = 0;
  if (thread == 0) m.roots = m.limits = 0;
  __syncthreads();
  each_lane([&](const text_in_batch& here, const GainsT& gains) {
    if (thread % 32 == 0) atomicAdd(&m.roots, 1), atomicAdd(&m.limits, here.tree.size->limit);
    gains.each([&](std::int32_t bin, std::int32_t n) { atomicAdd(&m.rows[bin], n); });
  });
  __syncthreads();
  const running_sum sum = sum_before(m.rows[thread], m.sums);
  m.before[thread] = sum.before;
  const std::int32_t drafted = n_rows > m.roots ? n_rows - m.roots : 0;
  if (thread == 0) {
    m.before[gain_bins] = sum.all;
    m.all = {gain_bins, 0};
    m.even = sum.all < drafted && m.roots > 0 ? (drafted - sum.all) / m.roots : 0;
  }
  __syncthreads();
  const bool is_last = sum.before <= drafted && m.before[thread + 1] > drafted;
  if (is_last) m.all = {thread, drafted - sum.before};
  for (std::int32_t i = thread; i < arrays.n_sizes; i += threads) {
    std::int32_t left = (texts.n << i) - m.roots;
    float expected = 0;
    for (std::int32_t bin = 0; bin < gain_bins && left > 0; ++bin) {
      expected += static_cast<float>(left < m.rows[bin] ? left : m.rows[bin]) * gain_of_bin(bin);
      left -= m.rows[bin];
    }
    arrays.expected[i * arrays.from_next] = expected;
  }
  __syncthreads();

  const tree_share all = m.all;
  each_lane([&](const text_in_batch& here, const GainsT& gains) {
    std::int32_t better = 0, equal = 0;
    gains.each([&](std::int32_t bin, std::int32_t n) {
      better += bin < all.bin ? n : 0;
      equal += bin == all.bin ? n : 0;
    });
    better = __reduce_add_sync(0xFFFFFFFFU, better);
    equal = __reduce_add_sync(0xFFFFFFFFU, equal);
    if (thread % 32 == 0) arrays.shares[here.place] = {better, equal};
  });
  __syncthreads();
  std::int32_t taken = 0;  // rows of the last bin, by the lanes before
  for (std::int32_t first = 0; first < texts.n; first += threads) {
    const text_in_batch here = first + thread < texts.n ? texts.at(first + thread) : text_in_batch{0, -1, {}, {}};
    const tree_share has = here.place < 0 ? tree_share{0, 0} : arrays.shares[here.place];
    const running_sum wanted = sum_before(has.n_in_bin, m.sums);
    const std::int32_t left = all.n_in_bin - taken - wanted.before;
    const std::int32_t n = left < 0 ? 0 : left < has.n_in_bin ? left : has.n_in_bin;
    if (here.place >= 0) {
      arrays.shares[here.place] = {all.bin, n};
      if constexpr (std::is_same_v<GainsT, level_gains>) {
        const std::int32_t most = has.bin + n + m.even;
        if (m.limits > drafted && most < here.tree.size->limit) here.tree.size->limit = most;
      }
    }
    taken += wanted.all;
    __syncthreads();
  }
}

// The arrays of cut_trees. Shapes: [places][stride]
struct cut_arrays {
  node_id* now;  // of a node of the tree that was grown: its number after the cut, or no_node
  node_id* was;  // of a node after the cut: its number before
  std::int32_t stride;
};

struct cut_memory {
  warp_sums sums;
};

// Cuts trees whose nodes have one draw each to the nodes that the texts' shares are for; one block works for a lane. A
// node comes after its parent, and is in no better bin than its parent, so that the nodes that stay are a tree.
template <class GainsT>
ESPALIER_KERNEL void __launch_bounds__(share_threads)
    cut_trees(text_batch texts, const text_gains* all_gains, const tree_share* shares, cut_arrays to) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  auto& sums = reinterpret_cast<cut_memory*>(shared_memory())->sums;
  const tree_writer& tree = here.tree;
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  constexpr auto threads = static_cast<std::int32_t>(share_threads);
  const GainsT gains = GainsT::of(here, all_gains[here.place]);
  const tree_share share = shares[here.place];
  node_id* const now = to.now + static_cast<std::ptrdiff_t>(here.place) * to.stride;
  node_id* const was = to.was + static_cast<std::ptrdiff_t>(here.place) * to.stride;
  const std::int32_t n = tree.size->n_nodes;
  std::int32_t n_kept = 0, n_in_bin = 0;
  for (std::int32_t first = 0; first < n; first += threads) {
    const node_id u = first + thread;
    const std::int32_t bin = u < n && u != root_node ? gains.bin(u) : -1;
    const bool is_last = u < n && bin == share.bin;
    const running_sum of_bin = sum_before(is_last ? 1 : 0, sums);
    const bool stays = u < n && (is_last ? n_in_bin + of_bin.before < share.n_in_bin : bin < share.bin);
    __syncthreads();
    const running_sum kept = sum_before(stays ? 1 : 0, sums);
    if (u < n) now[u] = stays ? n_kept + kept.before : no_node;
    if (stays) was[n_kept + kept.before] = u;
    n_kept += kept.all, n_in_bin += of_bin.all;
    __syncthreads();
  }
  if (n_kept == n) return;

  // The tree is changed in place: a node's new number is no larger than its old one, and its draws come later than the
  // node itself. Draw i has node i + 1.
  const auto next_kept = [&](std::int32_t draw) {
    while (draw >= 0 && now[draw + 1] == no_node)
      draw = tree.next_draw[draw];
    return draw;
  };
  const auto number = [&](std::int32_t draw) { return draw < 0 ? -1 : now[draw + 1] - 1; };
  for (std::int32_t first = 0; first < n_kept; first += threads) {
    const node_id v = first + thread, u = v < n_kept ? was[v] : no_node;
    token_id token = 0;
    node_id parent = no_node;
    std::int32_t depth = 0, next = -1, first_draw = -1, last_draw = -1;
    float log_prob = 0, path_log_prob = 0;
    if (u != no_node) {
      token = tree.token[u], depth = tree.depth[u];
      log_prob = tree.log_prob[u], path_log_prob = tree.path_log_prob[u];
      if (u != root_node) parent = now[tree.parent[u]], next = number(next_kept(tree.next_draw[u - 1]));
      first_draw = next_kept(tree.first_draw[u]);
      for (last_draw = first_draw; last_draw >= 0;) {
        const std::int32_t later = next_kept(tree.next_draw[last_draw]);
        if (later < 0) break;
        last_draw = later;
      }
    }
    __syncthreads();
    if (u != no_node) {
      tree.put(v, parent, token, log_prob, depth, path_log_prob);
      tree.first_draw[v] = number(first_draw);
      tree.last_draw[v] = number(last_draw);
      if (v != root_node) tree.next_draw[v - 1] = next;
    }
    __syncthreads();
  }
  if (thread == 0) *tree.size = {n_kept, n_kept - 1, n_kept - 1};
}

}  // namespace espalier::cuda::detail
