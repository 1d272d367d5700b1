// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/decoder/check_growth.hpp"

namespace espalier {

namespace detail {

// Indices that a drafter may use: what it is asked about are nodes of the tree.
template <class TreeT>
void require_wanted(const TreeT& tree, std::span<const node_id> wanted) {
  for (const node_id u : wanted) {
    if (u < 0 || u >= tree.size()) {
      raise<input_error>("the policy asks about node ", u, ", but the tree has the nodes 0 to ", tree.size() - 1,
                         u == no_node ? ": append() gives no_node (-1) where the tree is full." : ".");
    }
  }
}

// Of a step drafter, which takes the root for the beginning of a round.
inline void require_root(std::span<const node_id> wanted, bool is_first) {
  if (is_first && (wanted.size() != 1 || wanted[0] != root_node))
    raise<input_error>("the policy asks about node ", wanted[0], " first; it must be the root, alone.");
  if (!is_first && std::find(wanted.begin(), wanted.end(), root_node) != wanted.end())
    raise<input_error>("the policy asks about node 0, the root, twice in one round.");
}

// What each node was before the tree was built anew, in numbers that the drafter may use.
template <class TreeT>
void require_was(const TreeT& tree, std::span<const node_id> was) {
  if (was.size() != static_cast<std::size_t>(tree.size())) {
    raise<input_error>("the policy says of ", was.size(), " nodes what they were before, but the tree has ",
                       tree.size(), ".");
  }
}

// What a decoder has made room for.
template <class TreeT>
void require_budget(const TreeT& tree, std::int32_t most) {
  if (tree.view().n_draws > most) {
    raise<input_error>("the policy keeps ", tree.view().n_draws, " drafted tokens; here it may keep at most ", most,
                       ".");
  }
}

template <class FunctionT, class DrafterT, std::size_t... Index>
void for_part(DrafterT& drafter, std::size_t part, const FunctionT& f, std::index_sequence<Index...>) {
  (void)((Index == part ? (f.template operator()<Index>(drafter.template get<Index>()), true) : false) || ...);
}

}  // namespace detail

//! Grows the tree of a round, which holds the root: asks the drafter about what the policy wants until it wants nothing
//! more.
//!
//! Complexity  the policy's steps, each one call of the drafter; no allocation
//! Errors      input_error where a policy asks about what is no node, of a step drafter about the root later or about
//!             another node first, and where it keeps more than it may; those of policy and drafter; of check_growth()
//!             where ESPALIER_CHECKS is 1
template <class PolicyT, class TreeT, class DrafterT, Chance ChanceT>
requires TreePolicy<std::remove_reference_t<PolicyT>, DrafterT, ChanceT>
void grow(PolicyT&& policy, TreeT& tree, DrafterT& drafter, ChanceT& chance) {
  using policy_type = std::remove_reference_t<PolicyT>;
  const std::int32_t most = (std::min)(policy.max_nodes(), tree.limit());
  if constexpr (JointDrafter<DrafterT>) {
    constexpr auto parts = std::make_index_sequence<DrafterT::size()>();
    const auto limit = [&]<std::size_t... Index>(std::index_sequence<Index...>) {
      const std::int32_t rooms[] = {drafter.template room<Index>()...};
      policy.limit_parts(rooms);
    };
    limit(parts);
    auto wanted = std::span<const node_id>(policy.begin(tree));
    bool was_asked[DrafterT::size()] = {};
    const auto take_step = [&]<std::size_t Index, class PartT>(PartT& part) {
      const bool is_first = !std::exchange(was_asked[Index], true);
      if constexpr (StepDrafter<PartT>) detail::require_root(wanted, is_first);
      auto answer = ask(part, tree, wanted, tree.limit());  // that of the policy whose part it is
      wanted = policy.take(tree, joint_answer<Index, decltype(answer)>{answer}, chance);
    };
    while (!wanted.empty()) {
      detail::require_wanted(tree, wanted);
      if (policy.part() >= DrafterT::size())
        raise<input_error>("the policy asks drafter ", policy.part(), ", but there are ", DrafterT::size(), ".");
      detail::for_part(drafter, policy.part(), take_step, parts);
    }
    const auto renumber = [&]<std::size_t Index, class PartT>(PartT& part) {
      static_assert(!StepDrafter<PartT> || RenumberingDrafter<PartT>,
                    "a cascade builds the tree anew: each of its step drafters must have renumber(was) to follow");
      if constexpr (RenumberingDrafter<PartT>) {
        detail::require_was(tree, policy.was(Index));
        part.renumber(policy.was(Index));
      }
    };
    for (std::size_t part = 0; part < DrafterT::size(); ++part)
      detail::for_part(drafter, part, renumber, parts);
  } else {
    if constexpr (detail::ReadsStates<policy_type> && !StateDrafter<DrafterT>) {
      if (policy.reads_states() && tree.limit() > 0) {
        raise<option_error>(
            "the policy reads the draft's hidden states, but this drafter keeps none; it needs one that does, as "
            "autoregressive.");
      }
    }
    auto wanted = std::span<const node_id>(policy.begin(tree));
    if (tree.limit() == 0) wanted = {};  // there may be no room to draft
    if constexpr (AskableDrafter<DrafterT>) {
      for (bool is_first = true; !wanted.empty(); is_first = false) {
        detail::require_wanted(tree, wanted);
        if constexpr (StepDrafter<DrafterT>) detail::require_root(wanted, is_first);
        const auto answer = ask(drafter, tree, wanted, most);
        if constexpr (detail::ReadsStates<policy_type> && StateDrafter<DrafterT>) {
          if (wanted[0] == root_node && policy.reads_states())
            policy.read_draft(drafter.root_state(), drafter.previous_state());
        }
        wanted = policy.take(tree, answer, chance);
      }
      if constexpr (RebuildingPolicy<policy_type> && RenumberingDrafter<DrafterT>) {
        if (!policy.was().empty()) {
          detail::require_was(tree, policy.was());
          drafter.renumber(policy.was());
        }
      }
    }
  }
  detail::require_budget(tree, most);
#if ESPALIER_CHECKS
  if constexpr (StepDrafter<DrafterT>) {
    if (tree.size() > 1) check_growth<policy_type::sampling>(tree, drafter.rows());
  }
#endif
}

}  // namespace espalier
