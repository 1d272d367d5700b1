// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/selector/neural_delayed.cu
#pragma once

#include <cuda_runtime.h>

#include <concepts>
#include <cstdint>

#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/sampling_options.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"

//! How the rounds of the device show a policy what both models say at the end of each text: the device's form of
//! decoder/model_states.hpp. Nothing of it goes to the host.
namespace espalier::cuda::detail {

// The hidden states of a model's last pass, in the memory of the device. Shapes: states [rows of the pass][size]; no
// states if size is 0
struct hidden_rows {
  const float* states = nullptr;
  std::int32_t size = 0;

  ESPALIER_HOST_DEVICE const float* at(std::int32_t row) const {
    return states + static_cast<std::ptrdiff_t>(row) * size;
  }
};

// The draft model's states at the ends of the texts, once the drafter was asked about the roots. The row after a text's
// pending token is that of its root; the row after the token before it is found as that of the node `previous`, which
// is no node of the tree and has no row where the text has one token.
//
// Shapes      hidden: n_rows rows for each lane, of which the last is of the pending token, and the one before it of
//             the token before
struct draft_states {
  text_rows rows;
  node_id previous = no_node;
  hidden_rows hidden;
  std::int32_t n_rows = 0;
};

// The target's results in a round: the logits of its pass, its hidden states, and where the rows of each lane begin.
template <class LogitT>
struct target_states {
  vocab_rows<LogitT> logits;
  hidden_rows hidden;
  const batch_sequence* lanes = nullptr;
};

// The sizes of the models of which a policy is shown the states.
struct state_sizes {
  std::int32_t vocab = 0;
  std::int32_t context = 0;  // tokens that a text may have
  std::int32_t target_hidden = 0;
  std::int32_t draft_hidden = 0;
  std::int32_t max_texts = 1;
};

// A backend that keeps the hidden states after its last layer of the rows of its last pass.
//
//   hidden_size() -> int              numbers of a state; 0 if the model does not keep them
//   hidden_states() -> const float*   [rows][hidden_size], always at the same address
template <class BackendT>
concept KeepsHiddenStates = requires(const BackendT& backend) {
  { backend.hidden_size() } -> std::convertible_to<std::int32_t>;
  { backend.hidden_states() } -> std::convertible_to<const float*>;
};

// Returns the hidden states of a backend's last pass; none if the backend keeps none.
template <class BackendT>
hidden_rows hidden_rows_of(const BackendT& backend) {
  if constexpr (KeepsHiddenStates<BackendT>) {
    if (backend.hidden_size() > 0) return {backend.hidden_states(), backend.hidden_size()};
  }
  return {};
}

// A StepDrafter that keeps what its model says at the end of each text.
//
//   keep_states()              called before reserve(): from then on the states are kept
//   hidden_size() -> int       how many numbers a hidden state has; 0 if the model keeps none
//   states() -> draft_states   valid from propose() of the roots to the next propose()
template <class DrafterT>
concept KeepsStates = StepDrafter<DrafterT> && requires(DrafterT& drafter, const DrafterT& fixed) {
  drafter.keep_states();
  { fixed.hidden_size() } -> std::convertible_to<std::int32_t>;
  { fixed.states() } -> std::same_as<draft_states>;
};

// A policy that is shown what both models say.
//
//   reads_states() -> bool              whether it wants to be shown: the other members are called only then
//   reserve_states(sizes)               takes memory; called once, after reserve()
//   sample(place, sampling, stream)     the text in this place is sampled so from now on
//   forget_states(place, stream)        the next round of the text in this place begins without a row of the target:
//                                       a text has begun there, or the host has changed it
//   read(texts, paths, target, found, stream)   the target's results at the ends of the accepted paths of a round,
//                                       before they join the texts. found [places]
//   read_draft(texts, draft, stream)    the draft's states, when the drafter has answered about the roots, before
//                                       take()
template <class PolicyT>
concept ReadsStates = requires(PolicyT& policy, const PolicyT& fixed, const state_sizes& sizes, std::int32_t place,
                               const sampling_options& sampling, const text_batch& texts, const draft_states& draft,
                               cudaStream_t stream) {
  { fixed.reads_states() } -> std::same_as<bool>;
  policy.reserve_states(sizes);
  policy.sample(place, sampling, stream);
  policy.forget_states(place, stream);
  policy.read_draft(texts, draft, stream);
};

// Returns whether the policy wants to be shown what both models say.
template <class PolicyT>
bool reads_states(const PolicyT& policy) {
  if constexpr (ReadsStates<PolicyT>) return policy.reads_states();
  return false;
}

// Makes the drafter keep its states, if this policy reads them. Pre: the drafter's reserve() has not been called
//
// Errors      option_error if the policy reads states, and the drafter keeps none
template <class PolicyT, class DrafterT>
void keep_states(const PolicyT& policy, DrafterT& drafter) {
  if (!reads_states(policy)) return;
  if constexpr (KeepsStates<DrafterT>) {
    drafter.keep_states();
  } else {
    raise<option_error>(
        "the policy reads the draft's hidden states, but this drafter keeps none; it needs one that does, as "
        "autoregressive.");
  }
}

// Shows the policy what the draft model says, once the drafter was asked about the roots.
template <class PolicyT, class DrafterT>
void show_draft_states(PolicyT& policy, const text_batch& texts, const DrafterT& drafter, cudaStream_t stream) {
  if constexpr (ReadsStates<PolicyT> && KeepsStates<DrafterT>) {
    if (policy.reads_states()) policy.read_draft(texts, drafter.states(), stream);
  }
}

}  // namespace espalier::cuda::detail
