// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/sums.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/sampling/row_reader.cuh"
#include "espalier/cuda/sampling/row_transform.cuh"
#include "espalier/cuda/verifier/verify/row_transforms.cuh"
#include "espalier/verifier/walk/residual.hpp"
#include "espalier/verifier/walk/walk.hpp"

// Values along the first path of each text of a round, computed before any random number is known. The first path is
// made by the first draw of each node. The values are the weight of each node, and the sum of the residual that a
// rejection leaves.
namespace espalier::cuda::detail {

inline constexpr unsigned path_threads = 256;

// A node of the first path; entries are numbered by depth.
struct path_entry {
  // 1 for the root; for another node passed_on(weight, ratio) of its parent. A leaf passes with this probability.
  double weight;
  row_transform transform;  // the transform of its target row, if has_rest
  float share;              // share of the draft's row that a rejection of its first draw takes from the target's row
  node_id node;
  std::int32_t logits_row, draft_row;
  bool has_rest;  // whether it is an inner node of positive weight
};

struct path_size {
  std::int32_t length;   // number of nodes, the leaf included
  std::int32_t refused;  // depth of the first node with has_rest whose target row is refused, or -1
};

// The first paths of all texts. Passed by value into kernels.
//
// Shapes      size [places]; entry [places][max_nodes]; part [places][max_nodes][n_parts]: the sums of the parts of the
//             residual (p - share q)+ of an entry; total [places][max_nodes]: its whole sum
struct first_path_view {
  path_size* size = nullptr;
  path_entry* entry = nullptr;
  double* part = nullptr;
  double* total = nullptr;
  std::int32_t n_parts = 0;
  std::int32_t max_nodes = 0;

  // The first path of one text.
  __device__ first_path_view of(std::int32_t place) const {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(place) * max_nodes;
    return {size + place, entry + first, part + first * n_parts, total + first, n_parts, max_nodes};
  }
};

// The memory of a first_path_view.
class first_path {
 public:
  first_path() = default;
  first_path(std::int32_t max_nodes, std::int32_t vocab, std::int32_t max_texts)
      : n_parts_(static_cast<std::int32_t>(espalier::detail::parting(static_cast<std::size_t>(vocab)).count)),
        max_nodes_(max_nodes),
        size_(static_cast<std::size_t>(max_texts)),
        entry_(size_.size() * static_cast<std::size_t>(max_nodes)),
        part_(entry_.size() * static_cast<std::size_t>(n_parts_)),
        total_(entry_.size()) {}

  // The launch shape of sum_first_rests, for paths of n_nodes nodes at most.
  launch_shape shape(std::int32_t n_nodes, std::int32_t n_lanes) const {
    constexpr unsigned warps = path_threads / 32;
    const unsigned blocks = (static_cast<unsigned>(n_parts_) + warps - 1) / warps;
    const unsigned depths = (std::min)(static_cast<unsigned>(n_nodes), 32U);
    return {dim3(blocks, static_cast<unsigned>(n_lanes), depths), path_threads};
  }

  first_path_view view() const {
    return {size_.data(), entry_.data(), part_.data(), total_.data(), n_parts_, max_nodes_};
  }

 private:
  std::int32_t n_parts_ = 0, max_nodes_ = 0;
  device_array<path_size> size_;
  device_array<path_entry> entry_;
  device_array<double> part_, total_;
};

// Number of nodes of the largest tree that weigh_path copies to shared memory.
inline constexpr std::int32_t most_path_nodes = 1024;

struct path_memory {
  double ratio[most_path_nodes];   // by node: p / q of the token that its first draw chose
  node_id child[most_path_nodes];  // by node: the child that its first draw chose, or no_node
  double weight[most_path_nodes];  // weight of the path's node, by depth
  node_id node[most_path_nodes];
  path_size size;
};

// Finds the first path and its weights; one block works for a lane. One thread walks the path, with two loads and one
// product a node; everything else is done for all nodes at once.
template <class LogitT>
ESPALIER_KERNEL void weigh_path(text_batch texts, round_logits<LogitT> all_logits, text_rows all_drafts,
                                row_transforms_view all_rows, first_path_view all_paths, const fault* found) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const std::int32_t* const row_of_node = all_logits.of(here.lane).row_of_node;
  const std::int32_t* const draft_row_of = all_drafts.of(here.place).row_of;
  const row_transforms_view rows = all_rows.of(here.place);
  const first_path_view path = all_paths.of(here.place);
  auto& shared = *reinterpret_cast<path_memory*>(shared_memory());
  const tree_view tree = here.tree.view();
  const auto first_child = [&](node_id u) { return tree.is_leaf(u) ? no_node : *tree.draws(u).begin(); };
  const auto thread = static_cast<std::int32_t>(threadIdx.x), threads = static_cast<std::int32_t>(blockDim.x);
  const bool is_near = tree.n_nodes <= most_path_nodes;
  if (found[here.place].what != fault::kind::none) return;
  if (is_near) {
    for (std::int32_t u = thread; u < tree.n_nodes; u += threads) {
      shared.child[u] = first_child(u);
      shared.ratio[u] = rows.first_ratio[u];
    }
  }
  __syncthreads();
  const auto go = [&](const auto& child_of, const auto& ratio_of, const auto& put) {
    path_size size{0, -1};
    double weight = 1;
    for (node_id u = root_node; u != no_node; u = child_of(u)) {
      put(size.length++, u, weight);
      weight = espalier::detail::passed_on(weight, ratio_of(u));
    }
    shared.size = size;
  };
  if (thread == 0 && is_near) {
    go([&](node_id u) { return shared.child[u]; }, [&](node_id u) { return shared.ratio[u]; },
       [&](std::int32_t d, node_id u, double weight) { shared.node[d] = u, shared.weight[d] = weight; });
  } else if (thread == 0) {
    go(
        first_child, [&](node_id u) { return rows.first_ratio[u]; },
        [&](std::int32_t d, node_id u, double weight) { path.entry[d].node = u, path.entry[d].weight = weight; });
  }
  __syncthreads();
  std::int32_t refused = INT32_MAX;
  for (std::int32_t d = thread; d < shared.size.length; d += threads) {
    path_entry entry = path.entry[d];
    if (is_near) entry.node = shared.node[d], entry.weight = shared.weight[d];
    const node_id u = entry.node;
    entry.has_rest = !tree.is_leaf(u) && entry.weight > 0;
    if (entry.has_rest) {
      entry.transform = rows.transforms[u];
      entry.share = espalier::detail::share_after<float>({}, 1 / entry.weight);
      entry.logits_row = row_of_node[u];
      entry.draft_row = draft_row_of[u];
      if (entry.transform.refused != fault::kind::none) refused = ::min(refused, d);
    }
    path.entry[d] = entry;
  }
  const unsigned first_refused = __reduce_min_sync(all_lanes, static_cast<unsigned>(refused));
  if (thread % 32 == 0 && first_refused != INT32_MAX)
    atomicMin(reinterpret_cast<unsigned*>(&shared.size.refused), first_refused);
  __syncthreads();
  if (thread == 0) *path.size = shared.size;
}

// The residual that a rejection of the node's first draw leaves of the target's row, not normalised.
template <class LogitT>
struct first_rest {
  const LogitT* logits;
  const float* draft;
  row_transform transform;
  float share;

  __device__ float operator[](std::size_t i) const {
    const float p = transform.probability(number_in(logits, i), static_cast<token_id>(i));
    return espalier::detail::rest_of(p, share, draft[i]);
  }
};

// Sums the parts of each residual on the first path. Along x the grid has a warp for each part of a row, along y a
// lane. blockIdx.z is the depth; blocks take further depths if the path is longer than the grid.
template <class LogitT>
ESPALIER_KERNEL __launch_bounds__(path_threads, 4) void sum_first_rests(text_batch texts,
                                                                        round_logits<LogitT> all_logits,
                                                                        vocab_rows<float> draft,
                                                                        first_path_view all_paths, const fault* found) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const vocab_rows<LogitT> logits = all_logits.of(here.lane).logits;
  const first_path_view path = all_paths.of(here.place);
  const auto part = static_cast<std::int32_t>(blockIdx.x * (path_threads / 32) + threadIdx.x / 32);
  const espalier::detail::parting cut(static_cast<std::size_t>(logits.vocab));
  auto d = static_cast<std::int32_t>(blockIdx.z);
  path_entry entry = path.entry[d];  // loaded together with the length
  const std::int32_t length = path.size->length;
  if ((found[here.place].what != fault::kind::none) | (part >= path.n_parts)) return;
  while (d < length) {
    if (entry.has_rest) {
      const first_rest<LogitT> rest{logits.at(entry.logits_row), draft.at(entry.draft_row), entry.transform,
                                    entry.share};
      const double sum = espalier::detail::part_sums(one_warp(), cut, static_cast<std::size_t>(part), rest).of[0];
      if (threadIdx.x % 32 == 0) path.part[static_cast<std::ptrdiff_t>(d) * path.n_parts + part] = sum;
    }
    d += static_cast<std::int32_t>(gridDim.z);
    if (d < length) entry = path.entry[d];
  }
}

// Adds up the parts of each residual into path.total; one warp works on a residual. Ends with a barrier of the team.
__device__ inline void add_up_first_rests(const first_path_view& path, std::int32_t length, const team& who) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  for (auto d = static_cast<std::int32_t>(who.rank() / 32); d < length;
       d += static_cast<std::int32_t>(who.size() / 32)) {
    if (!path.entry[d].has_rest) continue;
    double sum = 0;
    for (std::int32_t part = lane; part < path.n_parts; part += 32)
      sum += path.part[static_cast<std::ptrdiff_t>(d) * path.n_parts + part];
    sum = halve_in_warp<32>(sum);
    if (lane == 0) path.total[d] = sum;
  }
  who.sync();
}

// The first nodes of a path, copied to shared memory for verifiers that ask about them again and again.
struct near_path {
  static constexpr std::int32_t most = 128;

  struct memory {
    path_entry entry[most];
    double total[most];
  };

  const memory* of = nullptr;
  std::int32_t length = 0;
  const double* part = nullptr;
  std::int32_t n_parts = 0;

  // Copies the first entries of a path, at most `most`, to `shared`. Called by the whole block.
  __device__ static near_path copied(const first_path_view& path, std::int32_t length, memory& shared) {
    const std::int32_t n = ::min(length, most);
    for (auto d = static_cast<std::int32_t>(threadIdx.x); d < n; d += static_cast<std::int32_t>(blockDim.x)) {
      shared.entry[d] = path.entry[d];
      shared.total[d] = path.total[d];
    }
    __syncthreads();
    return {&shared, n, path.part, path.n_parts};
  }

  // Returns the entry of node u at this depth, or null if the entry is not among the copied ones or has no residual.
  __device__ const path_entry* known(node_id u, std::int32_t depth) const {
    if (depth >= length) return nullptr;
    const path_entry& entry = of->entry[depth];
    return entry.node == u && entry.has_rest ? &entry : nullptr;
  }
};

}  // namespace espalier::cuda::detail
