// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/sharing.cpp
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "espalier/concepts/backend.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/kv_store.hpp"
#include "espalier/concepts/processor.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/sampling_options.hpp"
#include "espalier/decoder/model_states.hpp"
#include "espalier/decoder/text_options.hpp"
#include "espalier/sampling/lazy_rows.hpp"
#include "espalier/sampling/sampler.hpp"

//! The checks that a decoder makes of its parts when it is compiled, with a sentence for each.
namespace espalier::detail {

ESPALIER_NAMES_MEMBER(NamesOpen, open);
ESPALIER_NAMES_MEMBER(NamesReset, reset);
ESPALIER_NAMES_MEMBER(NamesRead, read);
ESPALIER_NAMES_MEMBER(NamesReadDraft, read_draft);
ESPALIER_NAMES_MEMBER(NamesReadsStates, reads_states);
ESPALIER_NAMES_MEMBER(NamesMaxAsked, max_asked);
ESPALIER_NAMES_MEMBER(NamesWas, was);
ESPALIER_NAMES_MEMBER(NamesReserve, reserve);
ESPALIER_NAMES_MEMBER(NamesArgmaxOnly, argmax_only);
ESPALIER_NAMES_MEMBER(NamesTargetAlone, target_alone);
ESPALIER_NAMES_MEMBER(NamesPrescribed, prescribed);
ESPALIER_NAMES_MEMBER(NamesVocabSize, vocab_size);
ESPALIER_NAMES_MEMBER(NamesRows, rows);
ESPALIER_NAMES_MEMBER(NamesForwardSeconds, forward_seconds);
ESPALIER_NAMES_MEMBER(NamesReadPrompt, read_prompt);
ESPALIER_NAMES_MEMBER(NamesRenumber, renumber);
ESPALIER_NAMES_MEMBER(NamesKeepStates, keep_states);
ESPALIER_NAMES_MEMBER(NamesMaxRows, max_rows);
ESPALIER_NAMES_MEMBER(NamesMaxPositions, max_positions);
ESPALIER_NAMES_MEMBER(NamesHiddenState, hidden_state);
ESPALIER_NAMES_MEMBER(NamesGivesMaxima, gives_maxima);
ESPALIER_NAMES_MEMBER(NamesPrefix, prefix);
ESPALIER_NAMES_MEMBER(NamesRemember, remember);
ESPALIER_NAMES_MEMBER(NamesSerialize, serialize);
ESPALIER_NAMES_MEMBER(NamesUntilSlide, until_slide);

// Checks that the optional members that a policy names can be called as the concept says. A member that cannot would
// never be called.
template <class PolicyT, class NumberT>
constexpr bool check_policy_members() {
  static_assert(!NamesOpen<PolicyT> || OpeningPolicy<PolicyT>,
                "the policy's member open cannot be called as open(round_start): see OpeningPolicy");
  static_assert(!NamesReset<PolicyT> || ResettingPolicy<PolicyT>,
                "the policy's member reset cannot be called as reset(): see ResettingPolicy");
  static_assert(!(NamesRead<PolicyT> || NamesReadDraft<PolicyT> || NamesReadsStates<PolicyT>) ||
                    ReadsModelStates<PolicyT, NumberT>,
                "the policy's members reads_states, read and read_draft cannot all be called with the logits of this "
                "target: see decoder/model_states.hpp");
  static_assert(!(NamesMaxAsked<PolicyT> || NamesWas<PolicyT>) || RebuildingPolicy<PolicyT> || AsksParts<PolicyT>,
                "the policy's members max_asked and was cannot both be called: see RebuildingPolicy");
  static_assert(!NamesSerialize<PolicyT> || SavedPolicy<PolicyT> || !LosesNothing<PolicyT>,
                "the policy's member serialize cannot be called with a byte_writer and a byte_reader: see SavedPolicy");
  return true;
}

template <class VerifierT>
constexpr bool check_verifier_members() {
  static_assert(!NamesReserve<VerifierT> || HasReserve<VerifierT>,
                "the verifier's member reserve cannot be called as reserve(max_nodes, vocab): see Verifier");
  static_assert(!NamesArgmaxOnly<VerifierT> || SaysArgmaxOnly<VerifierT>,
                "the verifier's member argmax_only is no static constexpr bool: see ArgmaxVerifier");
  static_assert(!NamesTargetAlone<VerifierT> || SaysTargetAlone<VerifierT>,
                "the verifier's member target_alone is no static constexpr bool: see Verifier");
  return true;
}

template <class ProcessorT>
constexpr bool check_processor() {
  static_assert(Processor<ProcessorT>, "the sixth part must be a Processor, or left out");
  static_assert(
      !NamesPrescribed<ProcessorT> || HasPrescribed<ProcessorT>,
      "the processor's member prescribed cannot be called as prescribed(path) -> std::optional<token_id>: see "
      "Processor");
  return true;
}

template <class DrafterT>
constexpr bool check_drafter_members() {
  static_assert(!NamesVocabSize<DrafterT> || HasVocabulary<DrafterT> || HasParts<DrafterT>,
                "the drafter's member vocab_size cannot be called as vocab_size(): see Drafter");
  static_assert(!NamesRows<DrafterT> || HasRows<DrafterT> || HasParts<DrafterT>,
                "the drafter's member rows does not give rows by node: see Drafter");
  static_assert(!NamesForwardSeconds<DrafterT> || HasForwardSeconds<DrafterT>,
                "the drafter's member forward_seconds cannot be called as forward_seconds(): see Drafter");
  static_assert(!NamesReadPrompt<DrafterT> || PromptDrafter<DrafterT>,
                "the drafter's member read_prompt cannot be called as read_prompt(n) -> bool: see PromptDrafter");
  static_assert(!NamesRenumber<DrafterT> || RenumberingDrafter<DrafterT>,
                "the drafter's member renumber cannot be called as renumber(was): see RenumberingDrafter");
  static_assert(!NamesKeepStates<DrafterT> || KeepsStates<DrafterT>,
                "the drafter has keep_states, but its members hidden_size, root_state and previous_state cannot all be "
                "called: see decoder/model_states.hpp");
  return true;
}

template <class BackendT, class KVStoreT>
constexpr bool check_model_members() {
  static_assert(!NamesMaxRows<BackendT> || HasMaxRows<BackendT>,
                "the backend's member max_rows cannot be called as max_rows(): see Backend");
  static_assert(!NamesMaxPositions<BackendT> || HasMaxPositions<BackendT>,
                "the backend's member max_positions cannot be called as max_positions(): see Backend");
  static_assert(!NamesHiddenState<BackendT> || KeepsHiddenStates<BackendT>,
                "the backend's members hidden_size and hidden_state cannot both be called: see Backend");
  static_assert(!NamesGivesMaxima<BackendT> || SaysWhetherMaxima<BackendT>,
                "the backend's member gives_maxima cannot be called as gives_maxima() -> bool: see Backend");
  static_assert(!(NamesPrefix<KVStoreT> || NamesRemember<KVStoreT>) || PrefixKVStore<KVStoreT>,
                "the store's members prefix, version and remember cannot all be called: see PrefixKVStore");
  static_assert(!NamesSerialize<KVStoreT> || SavedKVStore<KVStoreT>,
                "the store's member serialize cannot be called with archive and sequence: see SavedKVStore");
  static_assert(!NamesUntilSlide<KVStoreT> || WindowedKVStore<KVStoreT>,
                "the store's members held, until_slide and scratch cannot all be called: see WindowedKVStore");
  return true;
}

// Returns the rows of the drafter. A drafter without probabilities has none, and its policies need none.
template <class DrafterT>
auto draft_rows(DrafterT& drafter) {
  if constexpr (HasRows<DrafterT>) {
    return drafter.rows();
  } else {
    return node_rows<float>{};
  }
}

// Returns true if all parts fit; else one of the sentences is the compiler's error.
template <class DrafterT, class PolicyT, class VerifierT, class KVStoreT, class BackendT>
constexpr bool check_parts() {
  static_assert(!std::is_reference_v<PolicyT> && !std::is_reference_v<VerifierT>,
                "policy and verifier belong to the decoder: it keeps them by value");
  static_assert(Drafter<DrafterT>, "the first part must be a Drafter");
  static_assert(KVStore<KVStoreT>, "the fourth part must be a KVStore");
  static_assert(Backend<BackendT, KVStoreT>, "the fifth part must be a Backend that can use the KV store");
  using number = logit_number<BackendT, KVStoreT>;
  using rows_type = decltype(draft_rows(std::declval<DrafterT&>()));
  static_assert(FeatureDrafter<DrafterT, BackendT> || !CountsFeatures<DrafterT>,
                "this drafter reads hidden states, which this backend does not offer");
  static_assert(TreePolicy<PolicyT, DrafterT, philox_chance>,
                "the second part must be a TreePolicy that can grow from this drafter");
  static_assert(Verifier<VerifierT, rows_type, lazy_rows<number>, philox_chance>,
                "the third part must be a Verifier that can read the drafter's rows");
  static_assert(
      VerifierT::lossless == regime::any || std::is_same_v<decltype(std::declval<rows_type>().row(0)),
                                                           decltype(std::declval<lazy_rows<number>&>().row(0))>,
      "this verifier compares rows of draft and target: both must be float, or both double");
  static_assert(
      compatible(PolicyT::sampling, VerifierT::lossless),
      "this verifier is not lossless for the trees of this policy: the regime that the policy samples in must "
      "be one of those that the verifier handles");
  return check_policy_members<PolicyT, number>() && check_verifier_members<VerifierT>() &&
         check_drafter_members<DrafterT>() && check_model_members<BackendT, KVStoreT>();
}

// Checks what is known of the parts only when the program runs: vocabularies, and the rows of a pass.
//
// Errors      input_error for vocabularies of different sizes; option_error for trees that are too large for the
//             backend
template <class DrafterT, class BackendT>
void require_fit(const DrafterT& drafter, const BackendT& backend, std::int32_t nodes) {
  if constexpr (HasVocabulary<DrafterT>) {
    if (drafter.vocab_size() != backend.vocab_size()) {
      raise<input_error>("the draft model has ", drafter.vocab_size(), " tokens and the target ", backend.vocab_size(),
                         "; they must share one vocabulary.");
    }
  }
  const std::int32_t most = max_rows_of(backend);
  if (most <= nodes) {
    raise<option_error>("a tree of up to ", nodes, " nodes needs passes of ", nodes + 1,
                        " rows, but the backend takes at most ", most,
                        ": lower the policy's budget or raise the backend's max_rows.");
  }
}

template <class VerifierT>
void require_sampling(const sampling_options& options) {
  (void)sampler<float>(options);  // checks them
  if constexpr (ArgmaxVerifier<VerifierT>) {
    if (options.temperature != 0.0F) {
      raise<option_error>("option temperature is ", options.temperature,
                          ", but the greedy verifier writes the most probable token: it must be 0.");
    }
  }
}

template <class BackendT>
bool gives_maxima(const BackendT& backend) {
  if constexpr (SaysWhetherMaxima<BackendT>) return backend.gives_maxima();
  return false;
}

template <class VerifierT, class ProcessorT, class DrafterT, class PolicyT, class BackendT>
void require_parts(const DrafterT& drafter, const PolicyT& policy, const BackendT& backend, std::int32_t nodes) {
  require_fit(drafter, backend, nodes);
  const bool reads_rows = !ArgmaxVerifier<VerifierT> || processes<ProcessorT> || reads_states(policy);
  if (reads_rows && gives_maxima(backend)) {
    raise<option_error>(
        "the backend gives the greatest logits alone: the verifier must be greedy, without a processor or a policy "
        "that reads states; others need whole rows.");
  }
}

// Checks that the options of a text suit the verifier and the backend.
//
// Errors      option_error where they do not
template <class VerifierT, class BackendT>
void require_text(const text_options& options, const BackendT& backend) {
  require_sampling<VerifierT>(options.sampling);
  if (options.log_probs >= 0 && gives_maxima(backend)) {
    raise<option_error>("option log_probs is ", options.log_probs,
                        ", but must be -1: the backend gives the greatest logits alone.");
  }
}

}  // namespace espalier::detail
