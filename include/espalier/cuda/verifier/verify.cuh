// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "espalier/concepts/verifier.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/cuda/sampling/team_sampler.cuh"
#include "espalier/cuda/verifier/verify/team_rows.cuh"
#include "espalier/sampling/sampler.hpp"

namespace espalier::cuda {

namespace detail {

// Verifiers that keep something of each node on the path: basic_traversal.
template <class VerifierT>
concept KeepsPath = requires {
  typename VerifierT::memory;
};

// A verifier as a kernel gets it: itself, or what it keeps in, one path after the other for each block of the team.
template <class VerifierT>
struct verifier_argument {
  using type = VerifierT;
  using kept = char;
};
template <KeepsPath VerifierT>
struct verifier_argument<VerifierT> {
  using type = typename VerifierT::memory*;
  using kept = typename VerifierT::memory;
};

template <class VerifierT, class LogitT>
struct verify_arguments {
  typename verifier_argument<VerifierT>::type verifier;
  tree_writer tree;
  node_rows<float> draft;
  vocab_rows<LogitT> logits;
  const std::int32_t* row_of_node;
  std::int32_t sequence;
  sampling_options sampling;
  team_sampler_layout layout;
  chance_source chance;
  float* rows;
  std::int32_t n_rows;
  std::int32_t max_nodes;
  verdict* decision;
  fault* found;
};

template <class LogitT>
struct alignas(16) verify_memory {
  team::memory who;
  typename team_target_rows<LogitT>::memory rows;
};

template <class VerifierT, class LogitT>
ESPALIER_KERNEL __launch_bounds__(row_threads, 1) void verify_tree(const verify_arguments<VerifierT, LogitT> in) {
  verdict decided{root_node, -1};
  if (in.found->what != fault::kind::none) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *in.decision = decided;
    return;
  }
  auto& memory = *reinterpret_cast<verify_memory<LogitT>*>(shared_memory());
  team::turns turns;
  const team who(memory.who, turns);
  const tree_view tree = in.tree.view();
  const team_draft_rows draft(in.draft, who);
  team_sampler<LogitT> sampler(in.sampling, in.layout, who, shared_memory() + sizeof memory);
  team_target_rows<LogitT> target(memory.rows, tree, in.logits, in.row_of_node, in.sequence, in.rows, in.n_rows,
                                  sampler, who, in.found);
  philox_chance chance = in.chance.now();
  if constexpr (KeepsPath<VerifierT>) {
    const auto path = in.verifier + static_cast<std::ptrdiff_t>(who.block()) * in.max_nodes;
    decided = VerifierT::verify(tree, draft, target, chance, path);
  } else {
    VerifierT verifier = in.verifier;
    decided = verifier.verify(tree, draft, target, chance);
  }
  if (target.failed()) decided = {root_node, -1};
  if (who.rank() == 0) *in.decision = decided;
  who.sync();  // no block ends while another one reads its shared memory
}

}  // namespace detail

//! Verifies a draft tree on the device: any of the host's verifiers but khisti, run by one team of threads, in one
//! launch.
//!
//! The target's rows are made when they are first asked for, by the sampling options; residuals are never stored.
//!
//! LogitT is float, __half or __nv_bfloat16.
//!
//! Complexity  the verifier's passes over rows and the sampler's over the logits of the nodes visited; memory for at
//!             most 32 rows of the vocabulary. No synchronisation, no allocation after the constructor
//! Law         the verdict of the host's verifier over the same logits, draft rows, tree and chance, where neither
//!             compiler fuses products and sums
//! Errors      option_error for options out of range, cuda_error where there is no memory; a row that was visited and
//!             that espalier::sampler refuses, or any fault before: a fault, and the verdict {root, -1}, which commits
//!             nothing
template <class VerifierT, class LogitT>
class verification {
  static_assert(detail::KeepsPath<VerifierT> || std::is_trivially_copyable_v<VerifierT>,
                "this verifier does not run on the device: it keeps memory of the host, as khisti does");
  using path_type = typename detail::verifier_argument<VerifierT>::kept;

 public:
  //! For trees of this many nodes, root included.
  verification(VerifierT verifier, sampling_options sampling, std::int32_t max_nodes, std::int32_t vocab)
      : verification(std::move(verifier), sampling, max_nodes, vocab, detail::row_tuning_here(vocab)) {}

  verification(VerifierT verifier, sampling_options sampling, std::int32_t max_nodes, std::int32_t vocab,
               detail::row_tuning tuning)
      : verifier_(std::move(verifier)),
        sampling_(sampler<float>(sampling).options()),
        layout_(team_sampler_layout::of(sampling, vocab, tuning.blocks)),
        tuning_(tuning),
        max_nodes_(max_nodes),
        decision_(1) {
    if constexpr (!ArgmaxVerifier<VerifierT>) {
      n_rows_ = (std::min)(max_nodes, team_target_rows<LogitT>::most_rows);
      rows_ = device_array<float>(static_cast<std::size_t>(n_rows_) * static_cast<std::size_t>(vocab));
    }
    if constexpr (detail::KeepsPath<VerifierT>)
      path_ = device_array<path_type>(static_cast<std::size_t>(max_nodes) * tuning.blocks);
  }

  //! From the next run on. What was captured before samples as before.
  void sample(const sampling_options& sampling, std::int32_t vocab) {
    layout_ = team_sampler_layout::of(sampling, vocab, tuning_.blocks);
    sampling_ = sampler<float>(sampling).options();
  }

  //! A tree of this sequence.
  //!
  //! Shapes      row_of_node [n_nodes]: the row of each node in `logits`
  void run(const tree_writer& tree, const node_rows<float>& draft, const vocab_rows<LogitT>& logits,
           const std::int32_t* row_of_node, std::int32_t sequence, const chance_source& chance, fault* found,
           cudaStream_t stream) {
    launch("verify_tree", detail::verify_tree<VerifierT, LogitT>,
           tuning_.shape(1, sizeof(detail::verify_memory<LogitT>) + layout_.bytes), stream,
           {argument(), tree, draft, logits, row_of_node, sequence, sampling_, layout_, chance, rows_.data(), n_rows_,
            max_nodes_, decision_.data(), found});
  }

  //! [1], on the device: what the last run decided.
  const verdict* decision() const { return decision_.data(); }

 private:
  auto argument() const {
    if constexpr (detail::KeepsPath<VerifierT>) {
      return path_.data();
    } else {
      return verifier_;
    }
  }

  VerifierT verifier_;
  sampling_options sampling_;
  team_sampler_layout layout_;
  detail::row_tuning tuning_;
  std::int32_t max_nodes_;
  std::int32_t n_rows_ = 0;
  device_array<float> rows_;
  device_array<path_type> path_;
  device_array<verdict> decision_;
};

}  // namespace espalier::cuda
