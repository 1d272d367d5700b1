// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/tree_policy/growth/append_draws.cuh"
#include "espalier/cuda/tree_policy/growth/best_of_list.cuh"

namespace espalier::cuda::detail {

// Appends n draws in order to a tree that has this size, that of thread i as number i, each with a node of its own. By
// a block of threadsN. Forgets what the list has found.
//
// Pre         as append_draws; a barrier since it was read what was found
template <std::int32_t threadsN>
__device__ void append_in_order(const tree_writer& tree, const tree_size& size, std::int32_t n, listed_draw own,
                                best_of_list<threadsN>& best) {
  const auto siblings = best.siblings_of(n, own.above);
  own.number = own.node = static_cast<std::int32_t>(threadIdx.x);
  own.next = siblings.next;
  own.is_first = siblings.is_first;
  append_draws(tree, size, n, n, n, [&](std::int32_t) { return own; });
}

}  // namespace espalier::cuda::detail
