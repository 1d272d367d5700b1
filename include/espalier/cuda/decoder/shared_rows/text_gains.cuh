// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/sum_before.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/sampling/exponential.hpp"

//! How many tokens a further row of a text's tree is expected to gain.
namespace espalier::cuda::detail {

// Gains are told apart in eighths of a factor of two: a gain in bin b is between 2^(-(b + 1) / 8) and 2^(-b / 8). The
// first bin has all gains of 1 and more, the last all of 2^-32 and less.
inline constexpr std::int32_t gain_bins = 256;
inline constexpr float bins_a_nat = 11.5415603F;  // 8 / ln 2

// Returns the bin of a gain of e^log_gain; a larger gain never has a later bin.
ESPALIER_HOST_DEVICE inline std::int32_t gain_bin(float log_gain) {
  const float b = -bins_a_nat * log_gain;
  return b > 0 ? (b < static_cast<float>(gain_bins - 1) ? static_cast<std::int32_t>(b) : gain_bins - 1) : 0;
}
// Returns the gain in the middle of a bin, on the scale of logarithms.
ESPALIER_HOST_DEVICE inline float gain_of_bin(std::int32_t b) {
  return espalier::detail::exp2_of_minus((static_cast<float>(b) + 0.5F) * 0.125F);
}

// Sums over the rounds of a text, in which earlier rounds lose weight.
struct text_gains {
  static constexpr std::int32_t levels = 32;  // levels that are told apart

  float hoped = 0;              // tokens that were expected to be accepted; of drawn trees: levels that were looked at
  float got = 0;                // tokens that were accepted
  std::int32_t seen[levels]{};  // of drawn trees: most draws of a level

  static constexpr float kept = 0.96F;         // part of the weight of earlier rounds that each round leaves
  static constexpr float weight = 4;           // weight of what is assumed before any round
  static constexpr float usual_share = 0.75F;  // share of levels that is assumed to be accepted before any round

  // Returns the log of the number of accepted tokens for each token that was expected to be accepted.
  ESPALIER_HOST_DEVICE float log_worth() const {
    return static_cast<float>(espalier::detail::log_of(static_cast<double>((got + weight) / (hoped + weight))));
  }
  // Returns the log of the share of levels that are accepted, once the level before is.
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

}  // namespace espalier::cuda::detail
