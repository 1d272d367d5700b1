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
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
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
  text_batch texts;
  text_rows draft;
  vocab_rows<LogitT> logits;        // [lanes][rows_of_lane]
  const std::int32_t* row_of_node;  // [lanes][rows_of_lane]
  std::int32_t rows_of_lane;
  const sampling_options* samplings;  // [places], as are the following
  team_sampler_layout layout;
  float* rows;  // [places][n_rows][vocab]
  std::int32_t n_rows;
  std::int32_t max_nodes;
  verdict* decisions;
  fault* found;
};

// The host's options may be gone when this runs.
template <class UnusedT = void>
ESPALIER_KERNEL void sample_as(sampling_options* to, sampling_options options) {
  *to = options;
}

template <class LogitT>
struct alignas(16) verify_memory {
  team::memory who;
  typename team_target_rows<LogitT>::memory rows;
};

template <class VerifierT, class LogitT>
ESPALIER_KERNEL __launch_bounds__(row_threads, 1) void verify_trees(const verify_arguments<VerifierT, LogitT> in) {
  const text_in_batch here = in.texts.here();
  if (here.place < 0) return;
  verdict decided{root_node, -1};
  fault* const found = in.found + here.place;
  if (found->what != fault::kind::none) {
    if (blockIdx.x == 0 && threadIdx.x == 0) in.decisions[here.place] = decided;
    return;
  }
  auto& memory = *reinterpret_cast<verify_memory<LogitT>*>(shared_memory());
  team::turns turns;
  const team who(memory.who, turns);
  const tree_view tree = here.tree.view();
  const node_rows<float> draft_rows = in.draft.of(here.place);
  const team_draft_rows draft(draft_rows, who);
  const sampling_options sampling = in.samplings[here.place];
  team_sampler<LogitT> sampler(sampling, in.layout, who, shared_memory() + sizeof memory);
  const std::int32_t first_row = here.lane * in.rows_of_lane;
  const vocab_rows<LogitT> logits{in.logits.at(first_row), in.rows_of_lane, in.logits.vocab};
  float* const rows =
      in.rows == nullptr ? nullptr : in.rows + static_cast<std::ptrdiff_t>(here.place) * in.n_rows * in.logits.vocab;
  team_target_rows<LogitT> target(memory.rows, tree, logits, in.row_of_node + first_row,
                                  in.texts.first_sequence + here.place, rows, in.n_rows, sampler, who, found);
  philox_chance chance = here.chance();
  if constexpr (KeepsPath<VerifierT>) {
    const std::int64_t at = static_cast<std::int64_t>(here.place) * who.blocks() + who.block();
    const auto path = in.verifier + at * in.max_nodes;
    decided = VerifierT::verify(tree, draft, target, chance, path);
  } else {
    VerifierT verifier = in.verifier;
    decided = verifier.verify(tree, draft, target, chance);
  }
  if (target.failed()) decided = {root_node, -1};
  if (who.rank() == 0) in.decisions[here.place] = decided;
  who.sync();  // no block ends while another one reads its shared memory
}

}  // namespace detail

//! Verifies the draft trees of texts on the device: any of the host's verifiers but khisti, run by one team of threads
//! for each text, in one launch.
//!
//! The target's rows are made when they are first asked for, by the text's sampling options; residuals are never
//! stored.
//!
//! LogitT is float, __half or __nv_bfloat16.
//!
//! Complexity  the verifier's passes over rows and the sampler's over the logits of the nodes visited; memory for at
//!             most 32 rows of the vocabulary for each text. No synchronisation, no allocation after the constructor
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
  //! For so many texts, trees of this many nodes, root included.
  verification(VerifierT verifier, std::int32_t max_nodes, std::int32_t vocab, std::int32_t max_texts = 1)
      : verification(std::move(verifier), max_nodes, vocab, max_texts, detail::row_tuning_here(vocab)) {}

  verification(VerifierT verifier, std::int32_t max_nodes, std::int32_t vocab, std::int32_t max_texts,
               detail::row_tuning tuning)
      : verifier_(std::move(verifier)),
        layout_(team_sampler_layout::of_any(vocab, tuning.blocks)),
        tuning_(tuning),
        max_nodes_(max_nodes),
        vocab_(vocab),
        samplings_(static_cast<std::size_t>(max_texts)),
        decisions_(static_cast<std::size_t>(max_texts)) {
    if constexpr (!ArgmaxVerifier<VerifierT>) {
      n_rows_ = (std::min)(max_nodes, team_target_rows<LogitT>::most_rows);
      rows_ = device_array<float>(static_cast<std::size_t>(n_rows_) * static_cast<std::size_t>(vocab) *
                                  static_cast<std::size_t>(max_texts));
    }
    if constexpr (detail::KeepsPath<VerifierT>)
      path_ = device_array<path_type>(static_cast<std::size_t>(max_nodes) * tuning.blocks *
                                      static_cast<std::size_t>(max_texts));
  }

  //! How the text in this place is sampled, from the next run on.
  void sample(std::int32_t place, const sampling_options& sampling, cudaStream_t stream) {
    (void)team_sampler_layout::of(sampling, vocab_, tuning_.blocks);  // checks them
    const sampling_options checked = sampler<float>(sampling).options();
    launch("sample_as", detail::sample_as<>, {}, stream, samplings_.data() + place, checked);
  }

  //! Shapes      logits, row_of_node [lanes][n_rows]: the row of each node in its lane; found [places]
  void run(const text_batch& texts, const text_rows& draft, const vocab_rows<LogitT>& logits,
           const std::int32_t* row_of_node, std::int32_t n_rows, fault* found, cudaStream_t stream) {
    launch("verify_trees", detail::verify_trees<VerifierT, LogitT>,
           tuning_.shape(1, sizeof(detail::verify_memory<LogitT>) + layout_.bytes, texts.n), stream,
           {argument(), texts, draft, logits, row_of_node, n_rows, samplings_.data(), layout_, rows_.data(), n_rows_,
            max_nodes_, decisions_.data(), found});
  }

  //! [places], on the device: what the last run decided.
  const verdict* decisions() const { return decisions_.data(); }

 private:
  auto argument() const {
    if constexpr (detail::KeepsPath<VerifierT>) {
      return path_.data();
    } else {
      return verifier_;
    }
  }

  VerifierT verifier_;
  team_sampler_layout layout_;
  detail::row_tuning tuning_;
  std::int32_t max_nodes_;
  std::int32_t vocab_;
  std::int32_t n_rows_ = 0;
  device_array<float> rows_;
  device_array<path_type> path_;
  device_array<sampling_options> samplings_;
  device_array<verdict> decisions_;
};

}  // namespace espalier::cuda
