// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include "espalier/concepts/drafter.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/concepts/backend.cuh"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/host_failure.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/prompt_chunk.cuh"
#include "espalier/cuda/core/text_batch.cuh"

namespace espalier::cuda {

//! espalier::joint on the device: several drafters of the same texts, for a policy that asks one after the other. See
//! cascade.
//!
//! Drafters are kept by reference when given as lvalues, by value otherwise. Each draft model needs a cache of its own,
//! or sequences of its own in a shared one.
//!
//!     joint drafter(autoregressive(draft, draft_kv), prompt_lookup());
//!
//! Complexity  the sum of the drafters'. Each drafter reserves memory for as many nodes as the merged tree, or the tree
//!             of any policy while it grows, may have. A draft model reads tokens that other drafters have drafted in
//!             its first pass of a round: for n levels of the other drafters' trees this pass has n + 1 rows, and at
//!             least two (see CatchingUpDrafter)
//! Law         Drafter's, if each drafter keeps it. capacity() is the largest capacity of a drafter: a drafter that has
//!             reached its own capacity drafts nothing while the others go on
//! Errors      input_error for vocabularies of different size; the errors of the drafters
template <class... DraftersT>
class joint {
  static_assert((AskableDrafter<std::remove_reference_t<DraftersT>> && ...),
                "each part of a joint must be a drafter on the device that can be asked: cuda::StepDrafter, "
                "cuda::BlockDrafter or cuda::SequenceDrafter. Drafters of the host cannot be: a round does not wait "
                "for the host");

 public:
  explicit joint(DraftersT&&... drafters) : drafters_(std::forward<DraftersT>(drafters)...) {
    std::int32_t known = 0;
    each([&]<class DrafterT>(const DrafterT& drafter) {
      if constexpr (espalier::detail::HasVocabulary<DrafterT>) {
        const std::int32_t vocab = drafter.vocab_size();
        if (known != 0 && vocab != known) {
          raise<input_error>("one drafter of the joint has ", known, " tokens and another ", vocab,
                             "; they must share one vocabulary.");
        }
        known = vocab;
      }
    });
  }

  std::tuple<std::remove_reference_t<DraftersT>&...> parts() {
    return std::apply([](auto&... drafters) { return std::tie(drafters...); }, drafters_);
  }

  //! The rows of the drafter, if there is only one. Several drafters have no such rows: their merged tree is drawn from
  //! no single distribution.
  auto rows() const requires(sizeof...(DraftersT) == 1 && (StepDrafter<std::remove_reference_t<DraftersT>> && ...)) {
    return std::get<0>(drafters_).rows();
  }

  std::int32_t capacity() const {
    std::int32_t largest = 0;
    each([&](const auto& drafter) { largest = std::max<std::int32_t>(largest, drafter.capacity()); });
    return largest;
  }

  //! The vocabulary size of the drafters that have probabilities.
  std::int32_t vocab_size() const requires(espalier::detail::HasVocabulary<std::remove_reference_t<DraftersT>> || ...) {
    std::int32_t vocab = 0;
    each([&]<class DrafterT>(const DrafterT& drafter) {
      if constexpr (espalier::detail::HasVocabulary<DrafterT>) vocab = drafter.vocab_size();
    });
    return vocab;
  }

  void reserve(std::int32_t max_nodes, std::int32_t max_texts, fault* found) {
    each([&](auto& drafter) { drafter.reserve(max_nodes, max_texts, found); });
  }

  void begin(std::int32_t place, text_view text, std::span<const token_id> context, std::int32_t n_known,
             cudaStream_t stream) {
    each([&](auto& drafter) { drafter.begin(place, text, context, n_known, stream); });
  }

  void ensure(std::int32_t place, std::int32_t n, cudaStream_t stream) {
    each([&](auto& drafter) { drafter.ensure(place, n, stream); });
  }

  void commit(const text_batch& texts, path_view path, cudaStream_t stream) {
    each([&](auto& drafter) { drafter.commit(texts, path, stream); });
  }

  //! Gives nodes their new numbers, in the drafters that are asked node by node.
  void renumber(const text_batch& texts, moved_nodes moved,
                cudaStream_t stream) requires((!StepDrafter<std::remove_reference_t<DraftersT>> ||
                                               RenumberingDrafter<std::remove_reference_t<DraftersT>>)&&...) {
    each([&]<class DrafterT>(DrafterT& drafter) {
      if constexpr (RenumberingDrafter<DrafterT>) drafter.renumber(texts, moved, stream);
    });
  }

  void release(std::int32_t place) requires(ReleasingDrafter<std::remove_reference_t<DraftersT>> || ...) {
    each([&]<class DrafterT>(DrafterT& drafter) {
      if constexpr (ReleasingDrafter<DrafterT>) drafter.release(place);
    });
  }

  //! Throws the exception that a model of the host has thrown since the last call, if there is one. If models of
  //! several drafters have thrown, it throws the exception of the first of them.
  void raise_failure() requires(detail::KeepsFailure<std::remove_reference_t<DraftersT>> || ...) {
    host_failure first;
    each([&]<class DrafterT>(DrafterT& drafter) {
      if constexpr (detail::KeepsFailure<DrafterT>) first.guard([&] { drafter.raise_failure(); });
    });
    first.raise();
  }

  //! Passes hidden states on to the drafters that read them, as FeatureDrafter says.
  template <class BackendT>
  void read(const BackendT& backend, std::int32_t place, std::int32_t first, std::int32_t n,
            cudaStream_t stream) requires(FeatureDrafter<std::remove_reference_t<DraftersT>, BackendT> || ...) {
    read_each(backend, [&](auto& drafter) { drafter.read(backend, place, first, n, stream); });
  }
  template <class BackendT>
  void read(const BackendT& backend, const text_batch& texts, path_view path, const batch_sequence* lanes,
            cudaStream_t stream) requires(FeatureDrafter<std::remove_reference_t<DraftersT>, BackendT> || ...) {
    read_each(backend, [&](auto& drafter) { drafter.read(backend, texts, path, lanes, stream); });
  }
  template <class BackendT>
  void read(const BackendT& backend, const prompt_chunk* chunks, std::int32_t n_chunks, std::int32_t n_rows,
            cudaStream_t stream) requires(FeatureDrafter<std::remove_reference_t<DraftersT>, BackendT> || ...) {
    read_each(backend, [&](auto& drafter) { drafter.read(backend, chunks, n_chunks, n_rows, stream); });
  }

 private:
  template <class BackendT, class FunctionT>
  void read_each(const BackendT&, const FunctionT& read) {
    each([&]<class DrafterT>(DrafterT& drafter) {
      if constexpr (FeatureDrafter<DrafterT, BackendT>) read(drafter);
    });
  }

  template <class FunctionT>
  void each(const FunctionT& function) {
    std::apply([&](auto&... drafters) { (function(drafters), ...); }, drafters_);
  }
  template <class FunctionT>
  void each(const FunctionT& function) const {
    std::apply([&](const auto&... drafters) { (function(drafters), ...); }, drafters_);
  }

  std::tuple<DraftersT...> drafters_;
};

template <class... DraftersT>
joint(DraftersT&&...) -> joint<DraftersT...>;

}  // namespace espalier::cuda
