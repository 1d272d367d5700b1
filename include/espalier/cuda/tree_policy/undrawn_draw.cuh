// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/core/chance.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/weights.hpp"
#include "espalier/cuda/core/team.cuh"
#include "espalier/sampling/undrawn.hpp"
#include "espalier/tree_policy/log_prob.hpp"

namespace espalier::cuda::detail {

// A draw without replacement.
struct undrawn_draw {
  token_id token = -1;     // negative: the row has given all it can
  double probability = 0;  // in the row
  double share = 0;        // in what was left of it

  __device__ float log_prob() const { return espalier::detail::log_prob_of(probability); }
};

// Draw number n from what node `at` of a tree has left of a row, with the random number of node u. The whole team.
__device__ inline undrawn_draw draw_undrawn(const tree_view& tree, node_id at, node_id u, std::int32_t n,
                                            const row_view<float, team>& row, const philox_chance& chance) {
  const undrawn<float, team> left(tree, at, row);
  const double mass = n == 0 ? 1 : espalier::detail::mass(left);
  undrawn_draw drawn;
  drawn.token = mass > 0 ? chance.pick(left, {u, n, purpose::draft}) : -1;
  if (drawn.token < 0) return drawn;
  drawn.probability = static_cast<double>(row[static_cast<std::size_t>(drawn.token)]);
  drawn.share = drawn.probability / mass < 1 ? drawn.probability / mass : 1.0;
  return drawn;
}

}  // namespace espalier::cuda::detail
