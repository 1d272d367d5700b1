// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/states.cpp
#pragma once

#include <concepts>
#include <cstdint>
#include <span>

#include "espalier/concepts/drafter.hpp"
#include "espalier/core/error.hpp"

//! How a decoder tells a policy what both models say at the end of the text. Only a policy that chooses by a network
//! asks for it: neural_delayed. So the concepts that policy and drafter must meet stand here, not in concepts/.
namespace espalier::detail {

// A policy that is told what both models say at the end of the text, if the target's logits are of type NumberT.
//
//   reads_states() -> bool           whether it wants to be told: then the drafter is to keep its states
//   read(logits, hidden)             the target's logits [vocab] and last hidden state at the node that was accepted,
//                                    before observe(); hidden is empty where the backend keeps none
//   read_draft(root, previous)       the draft's model_state after the pending token and after the token before it,
//                                    when the drafter has answered about the root, before take(); previous.row is empty
//                                    where that state is not known
template <class PolicyT, class NumberT>
concept ReadsModelStates = requires(PolicyT& policy, const PolicyT& fixed, std::span<const NumberT> logits,
                                    std::span<const float> hidden, model_state<NumberT> state) {
  { fixed.reads_states() } -> std::same_as<bool>;
  policy.read(logits, hidden);
  policy.read_draft(state, state);
};

// A policy that is told what both models say, if the target's logits are float or if they are double.
template <class PolicyT>
concept ReadsStates = ReadsModelStates<PolicyT, float> || ReadsModelStates<PolicyT, double>;

// A StepDrafter that can keep what its model says at the end of the text.
//
//   keep_states()                       called before reserve(): from then on the states are kept
//   hidden_size() -> int                how many numbers a hidden state has; 0 if the model keeps none
//   root_state() -> model_state         the state after the pending token
//   previous_state() -> model_state     the state after the token before the pending one; its row is empty if that
//                                       state is not known. Both states are valid from propose() of the root to the end
//                                       of the round
template <class DrafterT>
concept KeepsStates = StepDrafter<DrafterT> && requires(DrafterT& drafter, const DrafterT& fixed) {
  drafter.keep_states();
  { fixed.hidden_size() } -> std::convertible_to<std::int32_t>;
  { fixed.root_state().row[0] } -> std::convertible_to<double>;
  { fixed.previous_state().hidden[0] } -> std::convertible_to<float>;
};

// Returns whether the policy wants to be told what both models say.
template <class PolicyT>
bool reads_states(const PolicyT& policy) {
  if constexpr (ReadsStates<PolicyT>) return policy.reads_states();
  return false;
}

// Makes the drafter keep its states, if this policy reads them. Pre: the drafter's reserve() has not been called
template <class PolicyT, class DrafterT>
void keep_states(const PolicyT& policy, DrafterT& drafter) {
  for_each_part(drafter, [&]<class PartT>(PartT& part, auto) {
    if constexpr (KeepsStates<PartT>) {
      if (reads_states(policy)) part.keep_states();
    }
  });
}

// Checks that the drafter keeps states, if the policy reads them.
//
// Errors      option_error where it keeps none
template <class DrafterT, class PolicyT>
void require_states(const PolicyT& policy) {
  if constexpr (ReadsStates<PolicyT> && !KeepsStates<part_type<DrafterT, 0>>) {
    if (policy.reads_states()) {
      raise<option_error>(
          "the policy reads the draft's hidden states, but this drafter keeps none; it needs one that does, as "
          "autoregressive.");
    }
  }
}

// Tells the policy what the draft model says, once the drafter was asked about the root.
template <class PolicyT, class DrafterT>
void show_draft_states(PolicyT& policy, const DrafterT& drafter) {
  if constexpr (ReadsStates<PolicyT> && KeepsStates<DrafterT>) {
    if (policy.reads_states()) policy.read_draft(drafter.root_state(), drafter.previous_state());
  }
}

}  // namespace espalier::detail
