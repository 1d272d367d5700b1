// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/sharing.cpp
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/backend.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/kv_store.hpp"
#include "espalier/concepts/model_mistake.hpp"
#include "espalier/concepts/processor.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/sampling_options.hpp"
#include "espalier/core/token.hpp"
#include "espalier/decoder/model_states.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/text_options.hpp"
#include "espalier/sampling/lazy_rows.hpp"
#include "espalier/sampling/sampler.hpp"

//! The checks that a decoder makes of its parts when it is compiled, with a sentence for each.
namespace espalier::detail {

ESPALIER_NAMES_MEMBER(NamesForward, forward);
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
ESPALIER_NAMES_MEMBER(NamesApproximateFor, approximate_for);
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

ESPALIER_MISTAKE(policy_or_verifier_reference, "policy and verifier belong to the decoder: it keeps them by value");
ESPALIER_MISTAKE(swapped_policy_and_verifier, "policy and verifier are swapped: each stands in the other's place");
ESPALIER_MISTAKE(parts_in_another_order,
                 "the parts are swapped: their order is drafter, policy, verifier, KV store, backend");
ESPALIER_MISTAKE(too_few_parts, "a decoder needs five parts: drafter, policy, verifier, KV store, backend");
ESPALIER_MISTAKE(backend_as_drafter,
                 "the first part is a backend and no drafter: autoregressive(backend, kv) makes a drafter of it");
ESPALIER_MISTAKE(drafter_follows_text, "the drafter needs begin(context) and commit(tree, verdict): see Drafter");
ESPALIER_MISTAKE(drafter_has_room, "the drafter needs reserve(n) and capacity() const -> int: see Drafter");

// The kinds of parts, as far as their members tell.
template <class PartT>
concept IsBackend = NamesForward<PartT> && HasVocabSize<PartT> && !Drafter<PartT>;
template <class PartT>
concept IsPart = Drafter<PartT> || NamesRegime<PartT> || NamesLossless<PartT> || KVStore<PartT> || IsBackend<PartT>;

template <class DrafterT, class PolicyT, class VerifierT, class KVStoreT, class BackendT>
constexpr auto order_mistake() {
  if constexpr (std::is_reference_v<PolicyT> || std::is_reference_v<VerifierT>)
    return found<policy_or_verifier_reference>;
  else if constexpr (Drafter<DrafterT> && NamesLossless<PolicyT> && NamesRegime<VerifierT>)
    return found<swapped_policy_and_verifier>;
  else if constexpr (IsBackend<DrafterT> && KVStore<KVStoreT>)
    return found<backend_as_drafter>;
  else if constexpr ((!Drafter<DrafterT> && IsPart<DrafterT>) || (!NamesRegime<PolicyT> && IsPart<PolicyT>) ||
                     (!NamesLossless<VerifierT> && IsPart<VerifierT>) ||
                     (!KVStore<KVStoreT> && !KVStore<BackendT> && IsPart<KVStoreT>) ||
                     (!HasVocabSize<BackendT> && !KVStore<BackendT> && IsPart<BackendT>))
    return found<parts_in_another_order>;
  else if constexpr (!FollowsText<DrafterT>)
    return found<drafter_follows_text>;
  else if constexpr (!HasRoom<DrafterT>)
    return found<drafter_has_room>;
  else
    return found<no_mistake>;
}

ESPALIER_MISTAKE(policy_sampling, "the policy needs static constexpr regime sampling: see TreePolicy");
ESPALIER_MISTAKE(policy_max_nodes, "the policy needs max_nodes() const -> int: see TreePolicy");
ESPALIER_MISTAKE(policy_begin, "the policy needs begin(tree) -> std::span<const node_id>: see TreePolicy");
ESPALIER_MISTAKE(policy_observe, "the policy needs observe(tree, verdict): see TreePolicy");
ESPALIER_MISTAKE(
    policy_of_several_parts,
    "policy and drafter have different numbers of parts: a cascade of n policies needs a joint of n drafters");
ESPALIER_MISTAKE(policy_takes_part,
                 "the policy cannot grow from this drafter: its take() does not take the answer of each of its parts");
ESPALIER_MISTAKE(
    policy_rebuilds,
    "the policy cannot grow from this drafter: it builds its tree anew, and the drafter has no renumber()");
ESPALIER_MISTAKE(policy_takes_rows,
                 "the policy cannot grow from this drafter: its take(tree, answer, chance) does not take node_rows");
ESPALIER_MISTAKE(policy_takes_block,
                 "the policy cannot grow from this drafter: its take(tree, answer, chance) does not take block_rows; "
                 "factorised(drafter) gives node_rows");
ESPALIER_MISTAKE(
    policy_takes_run,
    "the policy cannot grow from this drafter: its take(tree, answer, chance) does not take a token_run, as "
    "that of chain does");
ESPALIER_MISTAKE(policy_asks, "the policy cannot grow from this drafter, which drafts nothing, as plain can");

template <class PolicyT, class DrafterT>
constexpr auto growth_mistake() {
  if constexpr (Takes<PolicyT, DrafterT, philox_chance>)
    return found<no_mistake>;
  else if constexpr (n_parts<PolicyT> != n_parts<DrafterT>)
    return found<policy_of_several_parts>;
  else if constexpr (HasParts<DrafterT> || HasParts<PolicyT>)
    return found<policy_takes_part>;
  else if constexpr (RebuildingPolicy<PolicyT> && StepDrafter<DrafterT> && !RenumberingDrafter<DrafterT>)
    return found<policy_rebuilds>;
  else if constexpr (StepDrafter<DrafterT>)
    return found<policy_takes_rows>;
  else if constexpr (BlockDrafter<DrafterT>)
    return found<policy_takes_block>;
  else if constexpr (SequenceDrafter<DrafterT>)
    return found<policy_takes_run>;
  else
    return found<policy_asks>;
}

ESPALIER_MISTAKE(policy_open, "the policy's member open cannot be called as open(round_start): see OpeningPolicy");
ESPALIER_MISTAKE(policy_reset, "the policy's member reset cannot be called as reset(): see ResettingPolicy");
ESPALIER_MISTAKE(policy_read,
                 "the policy's members reads_states, read and read_draft cannot all be called with the logits of this "
                 "target: see decoder/model_states.hpp");
ESPALIER_MISTAKE(policy_was, "the policy's members max_asked and was cannot both be called: see RebuildingPolicy");
ESPALIER_MISTAKE(
    policy_serialize,
    "the policy's member serialize cannot be called with a byte_writer and a byte_reader: see SavedPolicy");

// Returns the policy's first mistake. An optional member that cannot be called as its concept says is a mistake, too,
// since it would never be called.
template <class PolicyT, class DrafterT, class NumberT>
constexpr auto policy_mistake() {
  if constexpr (!NamesRegime<PolicyT>)
    return found<policy_sampling>;
  else if constexpr (!HasBudget<PolicyT>)
    return found<policy_max_nodes>;
  else if constexpr (!Begins<PolicyT>)
    return found<policy_begin>;
  else if constexpr (!Observes<PolicyT>)
    return found<policy_observe>;
  else if constexpr (NamesOpen<PolicyT> && !OpeningPolicy<PolicyT>)
    return found<policy_open>;
  else if constexpr (NamesReset<PolicyT> && !ResettingPolicy<PolicyT>)
    return found<policy_reset>;
  else if constexpr ((NamesRead<PolicyT> || NamesReadDraft<PolicyT> ||
                      NamesReadsStates<PolicyT>)&&!ReadsModelStates<PolicyT, NumberT>)
    return found<policy_read>;
  else if constexpr ((NamesMaxAsked<PolicyT> || NamesWas<PolicyT>)&&!RebuildingPolicy<PolicyT> && !AsksParts<PolicyT>)
    return found<policy_was>;
  else if constexpr (NamesSerialize<PolicyT> && !SavedPolicy<PolicyT> && LosesNothing<PolicyT>)
    return found<policy_serialize>;
  else
    return growth_mistake<PolicyT, DrafterT>();
}

ESPALIER_MISTAKE(verifier_lossless, "the verifier needs static constexpr regime lossless: see Verifier");
ESPALIER_MISTAKE(verifier_approximate,
                 "this verifier changes the distribution of the text: a decoder takes it only with the word for it, "
                 "as approximate<..>; docs/algorithms/verifiers.md says by how much");
ESPALIER_MISTAKE(
    verifier_verify,
    "the verifier has no verify(tree, draft rows, target rows, chance) that can be called with the rows of "
    "this drafter and this target: see Verifier");
ESPALIER_MISTAKE(verifier_gives, "the verifier's verify() must return a verdict");
ESPALIER_MISTAKE(verifier_reserve,
                 "the verifier's member reserve cannot be called as reserve(max_nodes, vocab): see Verifier");
ESPALIER_MISTAKE(verifier_argmax_only,
                 "the verifier's member argmax_only is no static constexpr bool: see ArgmaxVerifier");
ESPALIER_MISTAKE(verifier_target_alone, "the verifier's member target_alone is no static constexpr bool: see Verifier");
ESPALIER_MISTAKE(rows_of_two_numbers,
                 "this verifier compares rows of draft and target: both must be float, or both double");
ESPALIER_MISTAKE(
    verifier_regime,
    "this verifier is not lossless for the trees of this policy: the regime that the policy samples in must "
    "be one of those that the verifier handles; docs/pairs.md lists the pairs");

template <class VerifierT, class PolicyT, class DraftRowsT, class TargetRowsT>
constexpr auto verifier_mistake() {
  if constexpr (!NamesLossless<VerifierT> && NamesApproximateFor<VerifierT>)
    return found<verifier_approximate>;
  else if constexpr (!NamesLossless<VerifierT>)
    return found<verifier_lossless>;
  else if constexpr (!Verifies<VerifierT, DraftRowsT, TargetRowsT, philox_chance>) {
    if constexpr (requires(VerifierT & verifier, tree_view tree, DraftRowsT draft, TargetRowsT & target,
                           philox_chance & chance) { verifier.verify(tree, draft, target, chance); })
      return found<verifier_gives>;
    else
      return found<verifier_verify>;
  } else if constexpr (VerifierT::lossless != regime::any &&
                       !std::is_same_v<decltype(std::declval<DraftRowsT>().row(0)),
                                       decltype(std::declval<TargetRowsT&>().row(0))>)
    return found<rows_of_two_numbers>;
  else if constexpr (!compatible(PolicyT::sampling, VerifierT::lossless))
    return found<verifier_regime>;
  else if constexpr (NamesReserve<VerifierT> && !HasReserve<VerifierT>)
    return found<verifier_reserve>;
  else if constexpr (NamesArgmaxOnly<VerifierT> && !SaysArgmaxOnly<VerifierT>)
    return found<verifier_argmax_only>;
  else if constexpr (NamesTargetAlone<VerifierT> && !SaysTargetAlone<VerifierT>)
    return found<verifier_target_alone>;
  else
    return found<no_mistake>;
}

// A drafter that has a member n_read, even one that cannot be called as it should. A wrapper such as factorised has
// n_read only over some drafters; over the others it does not satisfy this concept.
template <class DrafterT>
concept NamesNRead = requires {
  &DrafterT::n_read;
};

ESPALIER_MISTAKE(drafter_features, "this drafter reads hidden states, which this backend does not offer");
ESPALIER_MISTAKE(drafter_n_read, "the drafter's member n_read cannot be called as n_read() -> int: see FeatureDrafter");
ESPALIER_MISTAKE(drafter_vocab_size, "the drafter's member vocab_size cannot be called as vocab_size(): see Drafter");
ESPALIER_MISTAKE(drafter_rows, "the drafter's member rows does not give rows by node: see Drafter");
ESPALIER_MISTAKE(drafter_seconds,
                 "the drafter's member forward_seconds cannot be called as forward_seconds(): see Drafter");
ESPALIER_MISTAKE(drafter_read_prompt,
                 "the drafter's member read_prompt cannot be called as read_prompt(n) -> bool: see PromptDrafter");
ESPALIER_MISTAKE(drafter_renumber,
                 "the drafter's member renumber cannot be called as renumber(was): see RenumberingDrafter");
ESPALIER_MISTAKE(
    drafter_keep_states,
    "the drafter has keep_states, but its members hidden_size, root_state and previous_state cannot all be "
    "called: see decoder/model_states.hpp");

template <class DrafterT, class BackendT>
constexpr auto drafter_mistake() {
  if constexpr (CountsFeatures<DrafterT> && !FeatureDrafter<DrafterT, BackendT>)
    return found<drafter_features>;
  else if constexpr (NamesNRead<DrafterT> && !CountsFeatures<DrafterT> && !HasParts<DrafterT>)
    return found<drafter_n_read>;
  else if constexpr (NamesVocabSize<DrafterT> && !HasVocabulary<DrafterT> && !HasParts<DrafterT>)
    return found<drafter_vocab_size>;
  else if constexpr (NamesRows<DrafterT> && !HasRows<DrafterT> && !HasParts<DrafterT>)
    return found<drafter_rows>;
  else if constexpr (NamesForwardSeconds<DrafterT> && !HasForwardSeconds<DrafterT>)
    return found<drafter_seconds>;
  else if constexpr (NamesReadPrompt<DrafterT> && !PromptDrafter<DrafterT>)
    return found<drafter_read_prompt>;
  else if constexpr (NamesRenumber<DrafterT> && !RenumberingDrafter<DrafterT>)
    return found<drafter_renumber>;
  else if constexpr (NamesKeepStates<DrafterT> && !KeepsStates<DrafterT>)
    return found<drafter_keep_states>;
  else
    return found<no_mistake>;
}

ESPALIER_MISTAKE(backend_max_rows, "the backend's member max_rows cannot be called as max_rows(): see Backend");
ESPALIER_MISTAKE(backend_max_positions,
                 "the backend's member max_positions cannot be called as max_positions(): see Backend");
ESPALIER_MISTAKE(backend_hidden_state,
                 "the backend's members hidden_size and hidden_state cannot both be called: see Backend");
ESPALIER_MISTAKE(backend_gives_maxima,
                 "the backend's member gives_maxima cannot be called as gives_maxima() -> bool: see Backend");
ESPALIER_MISTAKE(kv_store_prefix,
                 "the store's members prefix, version and remember cannot all be called: see PrefixKVStore");
ESPALIER_MISTAKE(kv_store_serialize,
                 "the store's member serialize cannot be called with archive and sequence: see SavedKVStore");
ESPALIER_MISTAKE(kv_store_window,
                 "the store's members held, until_slide and scratch cannot all be called: see WindowedKVStore");

template <class BackendT, class KVStoreT>
constexpr auto model_member_mistake() {
  if constexpr (NamesMaxRows<BackendT> && !HasMaxRows<BackendT>)
    return found<backend_max_rows>;
  else if constexpr (NamesMaxPositions<BackendT> && !HasMaxPositions<BackendT>)
    return found<backend_max_positions>;
  else if constexpr (NamesHiddenState<BackendT> && !KeepsHiddenStates<BackendT>)
    return found<backend_hidden_state>;
  else if constexpr (NamesGivesMaxima<BackendT> && !SaysWhetherMaxima<BackendT>)
    return found<backend_gives_maxima>;
  else if constexpr ((NamesPrefix<KVStoreT> || NamesRemember<KVStoreT>)&&!PrefixKVStore<KVStoreT>)
    return found<kv_store_prefix>;
  else if constexpr (NamesSerialize<KVStoreT> && !SavedKVStore<KVStoreT>)
    return found<kv_store_serialize>;
  else if constexpr (NamesUntilSlide<KVStoreT> && !WindowedKVStore<KVStoreT>)
    return found<kv_store_window>;
  else
    return found<no_mistake>;
}

ESPALIER_MISTAKE(no_processor_part, "the sixth part must be a Processor, or left out");
ESPALIER_MISTAKE(
    processor_prescribed,
    "the processor's member prescribed cannot be called as prescribed(path) -> std::optional<token_id>: see "
    "Processor");

template <class ProcessorT>
constexpr auto processor_mistake() {
  if constexpr (!Processor<ProcessorT>)
    return found<no_processor_part>;
  else if constexpr (NamesPrescribed<ProcessorT> && !HasPrescribed<ProcessorT>)
    return found<processor_prescribed>;
  else
    return found<no_mistake>;
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

// Returns the first of several findings that is a mistake; no_mistake if none is a mistake.
template <class FirstT, class... RestT>
constexpr auto first_mistake(FirstT first, RestT... rest) {
  if constexpr (sizeof...(RestT) == 0 || Mistake<typename FirstT::type>)
    return first;
  else
    return first_mistake(rest...);
}

template <class DrafterT, class PolicyT, class VerifierT, class KVStoreT, class BackendT, class ProcessorT>
constexpr auto find_part_mistake() {
  using order = decltype(order_mistake<DrafterT, PolicyT, VerifierT, KVStoreT, BackendT>());
  if constexpr (Mistake<typename order::type>) {
    return order();
  } else if constexpr (Mistake<model_mistake<BackendT, KVStoreT>>) {
    return found<model_mistake<BackendT, KVStoreT>>;
  } else {
    using number = logit_number<BackendT, KVStoreT>;
    using of_drafter = decltype(drafter_mistake<DrafterT, BackendT>());
    using of_policy = decltype(policy_mistake<PolicyT, DrafterT, number>());
    if constexpr (Mistake<typename of_drafter::type>) {
      return of_drafter();
    } else if constexpr (Mistake<typename of_policy::type>) {
      return of_policy();
    } else {
      using rows = decltype(draft_rows(std::declval<DrafterT&>()));
      return first_mistake(verifier_mistake<VerifierT, PolicyT, rows, lazy_rows<number>>(),
                           model_member_mistake<BackendT, KVStoreT>(), processor_mistake<ProcessorT>());
    }
  }
}

// The first mistake of a decoder's parts, which are given without references: one of the structs above, or no_mistake.
template <class DrafterT, class PolicyT, class VerifierT, class KVStoreT, class BackendT,
          class ProcessorT = no_processor>
using part_mistake =
    typename decltype(find_part_mistake<DrafterT, PolicyT, VerifierT, KVStoreT, BackendT, ProcessorT>())::type;

// The first mistake of five parts and a processor, as part_mistake finds it; the types may be references.
template <class DrafterT, class PolicyT, class VerifierT, class KVStoreT, class BackendT, class ProcessorT>
using mistake_of_parts = part_mistake<std::remove_reference_t<DrafterT>, PolicyT, VerifierT,
                                      std::remove_reference_t<KVStoreT>, std::remove_reference_t<BackendT>, ProcessorT>;

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

ESPALIER_MISTAKE(prompt_of_other_type,
                 "a prompt is a range of token_id, which is std::int32_t: convert other numbers, and encode characters "
                 "with a tokenizer");
ESPALIER_MISTAKE(number_as_stop, "stop conditions are given by name: {.max_tokens = 100} for 100 new tokens");
ESPALIER_MISTAKE(observer_of_other_type, "an observer is called with a const round_record&: see Observer");
ESPALIER_MISTAKE(
    stop_strings_without_pieces,
    "stop strings need the text of each token: generate(prompt, stop, observer, piece_of) takes a function "
    "that gives it");

// A range that is no prompt, such as a range of 64-bit numbers or of characters.
template <class PromptT>
concept OtherPrompt =
    !std::convertible_to<const PromptT&, std::span<const token_id>> && requires(const PromptT& prompt) {
  std::begin(prompt);
};

template <class ObserverT>
concept OtherObserver = !Observer<ObserverT>;

// Stands for stop_conditions that are written with `strings`: it has the same members, but `strings` must be given.
// Without a heap there are no strings, and the type stays incomplete.
struct conditions_with_strings
#if ESPALIER_HOSTED
{
  struct given_strings {
    given_strings(const auto&, const auto&...);
  };
  std::int32_t max_tokens = 0;
  std::vector<token_id> tokens{};
  given_strings strings;
  bool show_string = true;
}
#endif
;

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
