// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/sampling_options.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/sampling/row_reader.cuh"
#include "espalier/cuda/sampling/row_transform.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/cuda/sampling/team_sampler.cuh"

namespace espalier::cuda::detail {

// The transforms of the target's rows that are found before a verifier asks for them: those of the inner nodes among
// the first `n` nodes of each tree. Passed by value into kernels.
//
// Shapes      transforms, first_ratio [places][stride]
struct row_transforms_view {
  row_transform* transforms = nullptr;
  double* first_ratio = nullptr;  // p / q of the token that a node drew first (target to draft); null if not wanted
  std::int32_t n = 0;
  std::int32_t stride = 0;

  // The transforms of one text.
  __device__ row_transforms_view of(std::int32_t place) const {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(place) * stride;
    return {transforms + first, first_ratio == nullptr ? nullptr : first_ratio + first, n, stride};
  }

  // True if the transform of node u is found beforehand.
  __device__ bool has(tree_view tree, node_id u) const { return u < n && !tree.is_leaf(u); }
};

// The logits of a round's nodes, as the kernels of verification get them.
//
// Shapes      row_of_node [lanes][n_rows]: the row of each node within its lane; lanes [lanes]: the first row of each
//             lane in the logits is its row_begin. If `lanes` is null, each lane has n_rows rows, one lane after the
//             other
template <class LogitT>
struct round_logits {
  vocab_rows<LogitT> logits;
  const std::int32_t* row_of_node;
  std::int32_t n_rows;
  const batch_sequence* lanes = nullptr;

  // The logits of one lane.
  __device__ round_logits of(std::int32_t lane) const {
    const std::int32_t first = lanes == nullptr ? lane * n_rows : lanes[lane].row_begin;
    return {{logits.at(first), n_rows, logits.vocab}, row_of_node + lane * n_rows, n_rows};
  }
};

// Finds the transforms: grid column x is a team for node x, grid row y is lane y. Nodes that are leaves or have no row,
// and texts with a fault, get none. Shapes: samplings, found [places]
template <class LogitT>
ESPALIER_KERNEL __launch_bounds__(row_threads,
                                  2) void find_row_transforms(text_batch texts, round_logits<LogitT> all_logits,
                                                              text_rows all_drafts, const sampling_options* samplings,
                                                              team_sampler_layout layout, row_transforms_view all_rows,
                                                              const fault* found) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const round_logits<LogitT> from = all_logits.of(here.lane);
  const vocab_rows<LogitT>& logits = from.logits;
  const node_rows<float> draft = all_drafts.of(here.place);
  const row_transforms_view rows = all_rows.of(here.place);
  const sampling_options options = samplings[here.place];
  const tree_view tree = here.tree.view();
  const node_id u = team::number();
  // All loads are issued before the first value is used.
  const bool is_leaf = tree.is_leaf(u), has_fault = found[here.place].what != fault::kind::none;
  const std::int32_t row_of = from.row_of_node[u];
  if ((u >= tree.n_nodes) | is_leaf | has_fault | (row_of < 0)) return;
  team::turns turns;
  const team who(*reinterpret_cast<team::memory*>(shared_memory()), turns);
  team_sampler<LogitT> sampler(options, layout, who, shared_memory() + sizeof(team::memory));
  const LogitT* const row = logits.at(row_of);
  const row_transform transform = sampler.find_transform(row, logits.vocab);
  if (who.rank() == 0) {
    rows.transforms[u] = transform;
    if (rows.first_ratio != nullptr) {
      const token_id x = tree.token[*tree.draws(u).begin()];
      const float p = transform.probability(number_in(row, static_cast<std::size_t>(x)), x);
      rows.first_ratio[u] = static_cast<double>(p) / static_cast<double>(draft.at(u)[x]);
    }
  }
  who.sync();  // no block ends while another one reads its shared memory
}

}  // namespace espalier::cuda::detail
