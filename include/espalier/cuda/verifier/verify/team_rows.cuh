// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/sampling/team_sampler.cuh"

namespace espalier::cuda {

//! A row of the device as a team reads it.
using team_row = row_view<float, team>;

//! The rows that a tree was drawn from, for a verifier that a team runs.
class team_draft_rows {
 public:
  __device__ team_draft_rows(const node_rows<float>& rows, const team& who) : rows_(rows), who_(who) {}

  __device__ bool has(node_id u) const { return rows_.has(u); }
  //! Pre         has(u)
  __device__ team_row row(node_id u) const { return {rows_, u, who_}; }

 private:
  const node_rows<float>& rows_;
  const team& who_;
};

//! The target's rows by node, which a team makes from the logits when its verifier first asks: lazy_rows on the device.
//! There is memory for some rows alone: nodes of the same depth, modulo their number, share one, and a row that lost it
//! is made again.
//!
//! Complexity  row: the sampler's, once a node if the tree is no deeper than there are rows; argmax: one pass
//! Law         bit for bit the rows of espalier::lazy_rows
//! Errors      a fault for logits that espalier::sampler refuses: then the row is 0 everywhere, and the verdict is not
//!             to be used
//! Pre         of rows in use at once, no two share memory: a node and its parent never do
template <class LogitT>
class team_target_rows {
 public:
  static constexpr std::int32_t most_rows = 32;

  //! Which node each row is of: in the shared memory of each block.
  struct memory {
    node_id holder[most_rows];
  };

  //! Shapes      rows [n_rows][vocab], 2 <= n_rows <= most_rows, or 1 for a tree of the root alone; row_of_node
  //!             [n_nodes]
  __device__ team_target_rows(memory& shared, tree_view tree, const vocab_rows<LogitT>& logits,
                              const std::int32_t* row_of_node, std::int32_t sequence, float* rows, std::int32_t n_rows,
                              team_sampler<LogitT>& sampler, const team& who, fault* found)
      : shared_(shared),
        tree_(tree),
        logits_(logits),
        row_of_node_(row_of_node),
        sequence_(sequence),
        rows_(rows),
        n_rows_(n_rows),
        sampler_(sampler),
        who_(who),
        found_(found) {
    if (threadIdx.x < most_rows) shared_.holder[threadIdx.x] = no_node;
    __syncthreads();
  }

  //! The target's most probable token after node u; ties go to the lower id. -1 where there is a fault.
  __device__ __noinline__ token_id argmax(node_id u) {
    const token_id token = sampler_.argmax(logits_.at(row_of_node_[u]), logits_.vocab, found_, origin(u));
    if (token < 0) failed_ = true;
    return token;
  }

  //! The distribution of the token after node u.
  __device__ team_row row(node_id u) {
    const std::int32_t place = tree_.depth[u] % n_rows_;
    const auto vocab = static_cast<std::size_t>(logits_.vocab);
    float* const row = rows_ + static_cast<std::size_t>(place) * vocab;
    const bool is_made = who_.once([&] {
      const bool held = shared_.holder[place] == u;
      shared_.holder[place] = u;
      return held;
    });
    if (!is_made) make(row, u);
    return {row, vocab, who_};
  }

  //! Whether a row that was asked for has a fault.
  __device__ bool failed() const { return failed_; }

 private:
  __device__ row_origin origin(node_id u) const {
    return row_origin::after_node(row_origin::model::target, sequence_, u);
  }

  // Not inlined, for verifiers ask for rows in several places.
  __device__ __noinline__ void make(float* row, node_id u) {
    who_.sync();  // nobody reads what was there
    if (sampler_.probabilities(logits_.at(row_of_node_[u]), logits_.vocab, row, found_, origin(u))) return;
    failed_ = true;
    for (auto i = static_cast<std::int32_t>(who_.rank()); i < logits_.vocab;
         i += static_cast<std::int32_t>(who_.size()))
      row[i] = 0;
    who_.sync();
  }

  memory& shared_;
  tree_view tree_;
  const vocab_rows<LogitT>& logits_;
  const std::int32_t* row_of_node_;
  std::int32_t sequence_;
  float* rows_;
  std::int32_t n_rows_;
  team_sampler<LogitT>& sampler_;
  const team& who_;
  fault* found_;
  bool failed_ = false;
};

}  // namespace espalier::cuda
