// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/sum_before.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/sampling/exponential.hpp"

namespace espalier::cuda::detail {

// A gain is the number of tokens that a further row of a text's tree is expected to add to the text. Gains are sorted
// into bins: a gain in bin b is between 2^(-(b + 1) / 8) and 2^(-b / 8). The first bin also has all gains above 1, and
// the last one all below 2^-32.
inline constexpr std::int32_t gain_bins = 256;
inline constexpr float bins_a_nat = 11.5415603F;  // 8 / ln 2

// Returns the bin of a gain of e^log_gain; a larger gain never has a later bin.
ESPALIER_HOST_DEVICE inline std::int32_t gain_bin(float log_gain) {
  const float b = -bins_a_nat * log_gain;
  return b > 0 ? (b < static_cast<float>(gain_bins - 1) ? static_cast<std::int32_t>(b) : gain_bins - 1) : 0;
}
// Returns the gain in the middle of a bin: the geometric mean of its bounds.
ESPALIER_HOST_DEVICE inline float gain_of_bin(std::int32_t b) {
  return espalier::detail::exp2_of_minus((static_cast<float>(b) + 0.5F) * 0.125F);
}

// Statistics of the rounds of a text. In the sums `hoped` and `got`, earlier rounds lose weight.
struct text_gains {
  static constexpr std::int32_t levels = 32;  // levels of a tree that are counted

  float hoped = 0;              // tokens that were expected to be accepted; for drawn trees: levels that the verifier
                                // has looked at
  float got = 0;                // tokens that were accepted
  std::int32_t seen[levels]{};  // for drawn trees: the most draws that a round had in each level

  static constexpr float kept = 0.96F;         // factor by which each round lowers the weight of earlier rounds
  static constexpr float weight = 4;           // the assumption before any round counts as much as so many tokens or
                                               // levels
  static constexpr float usual_share = 0.75F;  // share of levels that is assumed to be accepted before any round

  // Returns the log of the ratio of tokens that were accepted to tokens that were expected to be accepted.
  ESPALIER_HOST_DEVICE float log_worth() const {
    return static_cast<float>(espalier::detail::log_of(static_cast<double>((got + weight) / (hoped + weight))));
  }
  // Returns the log of the share of levels that are accepted, among those that the verifier looks at.
  ESPALIER_HOST_DEVICE float log_share() const {
    const float share = (got + usual_share * weight) / (hoped + weight);
    return static_cast<float>(espalier::detail::log_of(static_cast<double>(share)));
  }
};

// The nodes of a tree that has grown, each of which takes one row. Their gains follow from the probabilities of their
// paths.
struct node_gains {
  const float* path_log_prob;
  float log_worth;
  std::int32_t n_nodes;

  __device__ static node_gains of(const text_in_batch& here, const text_gains& gains) {
    return {here.tree.path_log_prob, gains.log_worth(), here.tree.size->n_nodes};
  }
  __device__ std::int32_t bin(node_id u) const { return gain_bin(path_log_prob[u] + log_worth); }
  // Calls take(bin, 1) for each node but the root. Called by a warp.
  template <class FunctionT>
  __device__ void each(const FunctionT& take) const {
    for (auto u = static_cast<node_id>(threadIdx.x % 32) + 1; u < n_nodes; u += 32)
      take(bin(u), 1);
  }
};

// The levels of a tree that is still to be drawn. A level gains a token if it is accepted, whatever is drawn there, and
// takes as many rows as the most draws that it has had. A level that was never seen is taken to be one draw.
struct level_gains {
  const std::int32_t* seen;
  float log_share;
  std::int32_t limit;  // the most draws of the tree

  __device__ static level_gains of(const text_in_batch& here, const text_gains& gains) {
    return {gains.seen, gains.log_share(), here.tree.size->limit};
  }
  // Calls take(bin, rows) for each level within the limit. Called by a warp.
  template <class FunctionT>
  __device__ void each(const FunctionT& take) const {
    static_assert(text_gains::levels == 32);
    const auto level = static_cast<std::int32_t>(threadIdx.x % 32);
    const std::int32_t draws = seen[level] > 1 ? seen[level] : 1;
    const auto log_draws = static_cast<float>(espalier::detail::log_of(static_cast<double>(draws)));
    // A level is worth no more than the one before it.
    std::int32_t bin = gain_bin(static_cast<float>(level + 1) * log_share - log_draws);
    for (unsigned d = 1; d < 32; d *= 2) {
      const std::int32_t before = __shfl_up_sync(0xFFFFFFFFU, bin, d);
      bin = threadIdx.x % 32 >= d && before > bin ? before : bin;
    }
    const std::int32_t left = limit - (sum_to_lane(draws) - draws);
    if (left > 0) take(bin, left < draws ? left : draws);
  }
};

// Adds what a round has shown to each text's gains; one warp works for a lane. Shapes: decisions, gains [places]
template <bool DrawsV>
ESPALIER_KERNEL void observe_gains(text_batch texts, const verdict* decisions, text_gains* all_gains) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const verdict decision = decisions[here.place];
  const tree_view tree = here.tree.view();
  if (decision.token < 0 || tree.n_nodes < 2) return;
  text_gains& gains = all_gains[here.place];
  const std::int32_t accepted = tree.depth[decision.accepted];
  const auto lane = static_cast<std::int32_t>(threadIdx.x);
  float hoped = 0;
  if constexpr (DrawsV) {
    hoped = static_cast<float>(accepted + (tree.is_leaf(decision.accepted) ? 0 : 1));
    std::int32_t n = 0;
    for (std::int32_t draw = 0; draw < tree.n_draws; ++draw)
      n += tree.depth[tree.drawn_node[draw]] == lane + 1 ? 1 : 0;
    gains.seen[lane] = n > gains.seen[lane] ? n : gains.seen[lane];
  } else {
    for (node_id u = lane + 1; u < tree.n_nodes; u += 32)
      hoped += static_cast<float>(espalier::detail::exp_of_minus(static_cast<double>(-tree.path_log_prob[u])));
    for (unsigned d = 16; d > 0; d /= 2)
      hoped += __shfl_xor_sync(0xFFFFFFFFU, hoped, d);
  }
  if (lane != 0) return;
  gains.hoped = text_gains::kept * gains.hoped + hoped;
  gains.got = text_gains::kept * gains.got + static_cast<float>(accepted);
}

template <class GainsT>
ESPALIER_KERNEL void forget_gains(GainsT* gains) {
  *gains = {};
}

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
  std::int32_t before[gain_bins + 1];  // rows in all bins before this one
  warp_sums sums;
  std::int32_t roots;   // number of lanes that are not empty
  std::int32_t limits;  // sum of the limits of all trees
  tree_share all;       // the share of all texts together, as if they were one text
  std::int32_t even;    // rows that each text gets beside its share, if there are more rows than all bins have
};

// Shares out `n_rows` rows over all lanes, roots included: the rows that gain most; among rows of the same bin, those
// of the first lanes. Run by one block. If rows are shared before trees are drawn, each tree's limit is lowered to its
// text's share, and rows that are left are divided evenly; if there is room for the largest trees, the limits stay the
// same.
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
    // Until the loop below writes the share, `bin` is the number of rows in better bins.
    if (thread % 32 == 0) arrays.shares[here.place] = {better, equal};
  });
  __syncthreads();
  std::int32_t taken = 0;  // rows in bin `all.bin` that lanes of earlier turns of this loop have
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
  node_id* now;  // by number before the cut: the node's number after the cut, or no_node
  node_id* was;  // by number after the cut: the node's number before the cut
  std::int32_t stride;
};

struct cut_memory {
  warp_sums sums;
};

// Cuts trees whose nodes have one draw each to the nodes within the texts' shares; one block works for a lane. A node
// comes after its parent, and is in no better bin than its parent, so that the nodes that stay are a tree.
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

// The shares of the texts' trees in the rows of a round's pass: those rows are taken that are expected to gain most, to
// whichever text they belong, and a tree may be left with its root alone. The expected gain of a row follows from the
// draft's probabilities, corrected by what each text's rounds have shown.
//
// Trees that are drawn (DrawsV): each text's limit is set before anything is drawn, from earlier rounds alone. The text
// gets the levels that are likeliest to be accepted, whatever will be drawn there. Other trees are grown whole, and cut
// to their most probable paths: no chance is involved, so a cut may depend on the drafted tokens.
//
// Law         the distribution of no text depends on the shares: they follow from earlier rounds, or from a draft
//             without random numbers
template <bool DrawsV>
class shared_rows {
  using gains_type = std::conditional_t<DrawsV, level_gains, node_gains>;

 public:
  shared_rows(std::int32_t max_nodes, std::int32_t max_texts)
      : stride_(max_nodes + 1), gains_(static_cast<std::size_t>(max_texts)), shares_(gains_.size()) {
    if constexpr (!DrawsV) {
      now_ = device_array<node_id>(gains_.size() * static_cast<std::size_t>(stride_));
      was_ = device_array<node_id>(now_.size());
    }
  }

  // Forgets what was learnt from the last text in this place.
  void forget(std::int32_t place, cudaStream_t stream) const {
    launch("forget_gains", forget_gains<text_gains>, {}, stream, gains_.data() + place);
  }

  // Shares out n_rows rows over trees that have grown, or over trees that are still to be drawn. For i below n_sizes,
  // sets expected[i * from_next] to the number of tokens that all texts would gain in a pass of texts.n << i rows.
  void share(const text_batch& texts, std::int32_t n_rows, float* expected, std::ptrdiff_t from_next,
             std::int32_t n_sizes, cudaStream_t stream) const {
    launch("share_rows", share_rows<gains_type>, {.threads = share_threads, .shared_bytes = sizeof(share_memory)},
           stream, texts, {gains_.data(), shares_.data(), expected, from_next, n_sizes}, n_rows);
  }

  // Cuts the trees to their shares. Returns the earlier numbers of the nodes that are left.
  moved_nodes cut(const text_batch& texts, cudaStream_t stream) const requires(!DrawsV) {
    launch("cut_trees", cut_trees<gains_type>,
           {.grid = texts.lanes(), .threads = share_threads, .shared_bytes = sizeof(cut_memory)}, stream, texts,
           gains_.data(), shares_.data(), {now_.data(), was_.data(), stride_});
    return {was_.data(), stride_};
  }

  // Learns from the verdicts of a round. Shapes: decisions [places]
  void observe(const text_batch& texts, const verdict* decisions, cudaStream_t stream) const {
    launch("observe_gains", observe_gains<DrawsV>, {.grid = texts.lanes(), .threads = 32}, stream, texts, decisions,
           gains_.data());
  }

  const device_array<text_gains>& gains() const { return gains_; }

 private:
  std::int32_t stride_;
  device_array<text_gains> gains_;  // [places], as is shares_
  device_array<tree_share> shares_;
  device_array<node_id> now_, was_;  // [places][stride]
};

}  // namespace espalier::cuda::detail
