// SPDX-License-Identifier: BSL-1.0
// Tested by tests/concepts/minimal.cpp
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/round_start.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/util/byte_reader.hpp"
#include "espalier/core/util/byte_writer.hpp"
#include "espalier/core/verdict.hpp"

namespace espalier {

//! A policy that asks about nodes which it does not keep, and builds the tree anew in the end.
//!
//! Minimal definition, besides TreePolicy
//!   max_asked() -> int                    number of drafted tokens that the tree may hold while it grows
//!   was() -> span<const node_id>          was()[i] is the number that node i had when the drafter was asked about it;
//!                                         no_node if it was never asked about: [n_nodes]. Empty if the tree was not
//!                                         built anew. The decoder calls it after take() has returned no nodes, and
//!                                         hands it to the drafter's renumber(), so a policy that calls tree.reset()
//!                                         must have it
//! Models
//!   best_first, eagle2, cost_aware
template <class PolicyT>
concept RebuildingPolicy = requires(const PolicyT& policy) {
  { policy.max_asked() } -> std::convertible_to<std::int32_t>;
  { policy.was() } -> std::convertible_to<std::span<const node_id>>;
};

namespace detail {

// Checks the members that TreePolicy lists under parts(): limit_parts, part, max_asked and was(part).
template <class PolicyT>
concept AsksParts = HasParts<PolicyT> &&
    requires(PolicyT& policy, const PolicyT& fixed, std::span<const std::int32_t> rooms) {
  policy.limit_parts(rooms);
  { fixed.part() } -> std::convertible_to<std::size_t>;
  { fixed.max_asked() } -> std::convertible_to<std::int32_t>;
  { fixed.was(std::size_t{}) } -> std::convertible_to<std::span<const node_id>>;
};

template <class PolicyT>
concept NamesRegime = requires {
  { PolicyT::sampling } -> std::convertible_to<regime>;
};

template <class PolicyT>
concept HasBudget = requires(const PolicyT& policy) {
  { policy.max_nodes() } -> std::convertible_to<std::int32_t>;
};

template <class PolicyT>
concept Begins = requires(PolicyT& policy, tree<>& tree) {
  { policy.begin(tree) } -> std::convertible_to<std::span<const node_id>>;
};

template <class PolicyT, class AnswerT, class ChanceT>
concept TakesAnswer = requires(PolicyT& policy, tree<>& tree, AnswerT answer, ChanceT& chance) {
  { policy.take(tree, answer, chance) } -> std::convertible_to<std::span<const node_id>>;
};

template <class PolicyT, std::size_t Index, class AnswerT, class ChanceT>
concept TakesAnswerOfPart = requires(PolicyT& policy, tree<>& tree, AnswerT answer, ChanceT& chance) {
  { policy.template take<Index>(tree, answer, chance) } -> std::convertible_to<std::span<const node_id>>;
};

template <class DrafterT>
using answer_of = decltype(ask(std::declval<DrafterT&>(), {}, {}, 0));

// Stands for the answer of a drafter that is never asked, such as no_drafter. Only a policy whose take() accepts every
// type, such as plain, satisfies Takes with it.
struct no_answer {};

// True if the policy takes the answers of the drafter's part with this number.
template <class PolicyT, class PartT, std::size_t Index, class ChanceT>
constexpr bool takes_part() {
  if constexpr (AsksParts<PolicyT>) {
    if constexpr (AskableDrafter<PartT>) return TakesAnswerOfPart<PolicyT, Index, answer_of<PartT>, ChanceT>;
    return false;
  } else if constexpr (HasParts<PolicyT> ||
                       (RebuildingPolicy<PolicyT> && StepDrafter<PartT> && !RenumberingDrafter<PartT>)) {
    return false;
  } else if constexpr (AskableDrafter<PartT>) {
    return TakesAnswer<PolicyT, answer_of<PartT>, ChanceT>;
  } else {
    return TakesAnswer<PolicyT, no_answer, ChanceT>;
  }
}

template <class PolicyT, class DrafterT, class ChanceT>
constexpr bool takes_answers() {
  if constexpr (n_parts<PolicyT> != n_parts<DrafterT>) {
    return false;
  } else {
    return []<std::size_t... Index>(std::index_sequence<Index...>) {
      return (takes_part<PolicyT, part_type<DrafterT, Index>, Index, ChanceT>() && ...);
    }
    (std::make_index_sequence<n_parts<DrafterT>>());
  }
}

template <class PolicyT, class DrafterT, class ChanceT>
concept Takes = takes_answers<PolicyT, DrafterT, ChanceT>();

template <class PolicyT>
concept Observes = requires(PolicyT& policy, tree_view tree, verdict v) {
  policy.observe(tree, v);
};

}  // namespace detail

//! A policy that is told, before each round, how long the text is and how the target samples.
//!
//! Minimal definition, besides TreePolicy
//!   open(round_start)          called before begin()
//! Models
//!   cost_aware, cost_aware_draws, neural_delayed, cascade
template <class PolicyT>
concept OpeningPolicy = requires(PolicyT& policy, round_start start) {
  policy.open(start);
};

//! A policy that learns within a text.
//!
//! Minimal definition, besides TreePolicy
//!   reset()          drops what was learnt from the last text, since a new one begins
//! Models
//!   adaptive_chain, dynatree, dyspec_threshold, cost_aware, cost_aware_draws, cascade, neural_delayed
template <class PolicyT>
concept ResettingPolicy = requires(PolicyT& policy) {
  policy.reset();
};

//! A policy whose state can be saved with its text.
//!
//! Minimal definition, besides TreePolicy
//!   serialize(archive)         calls the archive, a byte_writer or a byte_reader, with each value that was learnt, not
//!                              with options. Called between two rounds
//! Laws
//!   A policy with the same options that has loaded these values goes on as the policy that saved them.
//! Models
//!   adaptive_chain, dynatree, dyspec_threshold, cost_aware, cost_aware_draws, cascade, neural_delayed
template <class PolicyT>
concept SavedPolicy = requires(PolicyT& policy, byte_writer& writer, byte_reader& reader) {
  policy.serialize(writer);
  policy.serialize(reader);
};

//! A policy whose round can share one budget_type object with the rounds of other texts. A decoder of many texts lets
//! the policies of all texts consider what they want; then the object decides, and then each policy chooses.
//!
//! Minimal definition, besides OpeningPolicy
//!   typename budget_type          copyable, with the members
//!     begin(n_texts, context, n_reading, n_prompt_rows)   begins a round of n_texts texts, whose caches hold `context`
//!                                 tokens each, while n_reading other texts read n_prompt_rows rows of their prompts in
//!                                 the same pass of the target
//!     worth_reading(n_texts, context, unread, left) -> bool   true if the drafter should read the `unread` tokens of a
//!                                 text that goes on for `left` tokens, so that it can draft for the text
//!     decide()                    called once all policies have said what they want
//!     end()                       called once all policies have observed their verdicts
//!   budget() -> const budget_type&   the policy's own budget, for rounds of one text
//!   join(budget)                  takes the budget of this round, after open() and before begin()
//!   consider(tree, answer, chance), choose(tree, answer, chance) -> wanted    the two halves of take(): decide() is
//!                                 called between them
//! Models
//!   cost_aware, cost_aware_draws
template <class PolicyT>
concept BudgetedPolicy = OpeningPolicy<PolicyT> &&
    requires(PolicyT& policy, const PolicyT& fixed, typename PolicyT::budget_type& budget, std::int32_t n) {
  { fixed.budget() } -> std::same_as<const typename PolicyT::budget_type&>;
  policy.join(budget);
  budget.begin(n, n, n, n);
  { budget.worth_reading(n, n, n, n) } -> std::same_as<bool>;
  budget.decide();
  budget.end();
};

namespace detail {

// The budget_type of policies that share none.
struct no_budget {};

template <class PolicyT>
struct budget_of : std::type_identity<no_budget> {};
template <BudgetedPolicy PolicyT>
struct budget_of<PolicyT> : std::type_identity<typename PolicyT::budget_type> {};

// A policy that can be saved, or learns nothing: neither from rounds nor from the models' hidden states (reads_states).
template <class PolicyT>
concept LosesNothing =
    SavedPolicy<PolicyT> || !(ResettingPolicy<PolicyT> || requires(const PolicyT& policy) { policy.reads_states(); });

}  // namespace detail

//! Decides step by step which nodes to ask a drafter about, and which tokens to add to the tree. It never calls a
//! drafter itself: it says which nodes it wants to know about, is given the answer, and appends nodes.
//!
//!     for (auto wanted = policy.begin(tree); !wanted.empty();)
//!       wanted = policy.take(tree, ask(drafter, tree, wanted, policy.max_nodes()), chance);
//!
//! Minimal definition
//!   static constexpr regime sampling      how the children of its nodes are chosen
//!   max_nodes() -> int                    number of drafted tokens that a round has at most, without the root
//!   begin(tree) -> span<const node_id>    begins a round, whose tree holds the root; returns the nodes to ask about:
//!                                         the root, or none, for example where tree.full()
//!   take(tree, answer, chance) -> span<const node_id>   appends nodes by the drafter's answer; returns the nodes to
//!                                         ask about next, none once the tree is complete. The answer is what ask()
//!                                         returns: node_rows of all nodes that were asked about, block_rows, or a
//!                                         token_run, by the kind of drafter. A policy can be used with the drafters
//!                                         whose answer its take() accepts
//!   observe(tree, verdict)                is told the round's outcome, to learn from it
//! Optional
//!   open                                  see OpeningPolicy
//!   reset                                 see ResettingPolicy
//!   max_asked, was                        see RebuildingPolicy
//!   parts() -> tuple of const policy&     only for a policy that consists of several policies: returns these. The
//!                                         drafter must have as many parts, and policy i is given the answers of part i
//!                                         (see for_each_part). Such a policy also has (see cascade):
//!     limit_parts(rooms)                  called before begin(): rooms[i] is the number of tokens that part i of the
//!                                         drafter may draft
//!     part() -> std::size_t               number of the part that is asked about the wanted nodes
//!     take<Index>(tree, answer, chance)   instead of take(): the answer comes from part Index of the drafter
//!     max_asked() -> int, was(part) -> span<const node_id>   as RebuildingPolicy's; was(part) is never empty
//!   serialize                             see SavedPolicy
//!   budget_type, budget, join, consider, choose   see BudgetedPolicy
//! Laws
//!   parent(u) < u; at most min(max_nodes(), tree.limit()) draws in the end, and at most tree.limit() while the tree
//!   grows.
//!   The wanted nodes are nodes of the tree that were not asked about before, parents before their children.
//!   The children that are drawn at a node are drawn from the row that the drafter gave for it.
//!   Whether a sampled token is kept never depends on which token it is.
//!   All state belongs to one text: a copy goes on as the original would.
//! Models
//!   plain; deterministic: chain, adaptive_chain, fixed, dynatree, best_first, eagle2, cascade, cost_aware; independent
//!   draws: iid_paths, specinfer_static, delayed, neural_delayed, sampled_chain; without replacement: dyspec_greedy,
//!   dyspec_threshold, sequoia, cost_aware_draws
template <class PolicyT, class DrafterT, class ChanceT>
concept TreePolicy = detail::NamesRegime<PolicyT> && detail::HasBudget<PolicyT> && detail::Begins<PolicyT> &&
    detail::Takes<PolicyT, DrafterT, ChanceT> && detail::Observes<PolicyT>;

//! Number of drafted tokens that a policy's tree may hold at most, while it grows and afterwards.
template <class PolicyT>
std::int32_t most_asked(const PolicyT& policy) {
  if constexpr (RebuildingPolicy<PolicyT> || detail::AsksParts<PolicyT>) return policy.max_asked();
  return policy.max_nodes();
}

}  // namespace espalier
