// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/guards.cpp
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
#include "espalier/core/require_token.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/decoder/check_growth.hpp"
#include "espalier/decoder/model_states.hpp"

namespace espalier {

namespace detail {

// Checks the drafted tokens before the target sees them. Errors: input_error for one outside the vocabulary.
inline void require_tokens(tree_view tree, std::int32_t vocab) {
  for (node_id u = 1; u < tree.n_nodes; ++u)
    require_token(tree, u, vocab);
}

// Checks a verdict before caches, drafter and policy get it. Errors: input_error if its node is not in the tree, or its
// token not in the vocabulary.
inline void require_verdict(tree_view tree, verdict v, std::int32_t vocab) {
  if (v.accepted < 0 || v.accepted >= tree.n_nodes) {
    raise<input_error>("the verifier accepts node ", v.accepted, ", but the tree has the nodes 0 to ", tree.n_nodes - 1,
                       ".");
  }
  if (v.token < 0 || v.token >= vocab) {
    raise<input_error>("the verifier gives token ", v.token, " after node ", v.accepted,
                       ", but the vocabulary ends at ", vocab - 1, ".");
  }
}

// Checks that a drafter is asked about nodes of the tree.
template <class TreeT>
void require_wanted(const TreeT& tree, std::span<const node_id> wanted) {
  for (const node_id u : wanted) {
    if (u < 0 || u >= tree.size()) {
      raise<input_error>("the policy asks about node ", u, ", but the tree has the nodes 0 to ", tree.size() - 1,
                         u == no_node ? ": append() gives no_node (-1) where the tree is full." : ".");
    }
  }
}

// Checks that a step drafter is first asked about the root alone, and never about the root again: the root opens a
// round.
inline void require_root(std::span<const node_id> wanted, bool is_first) {
  if (is_first && (wanted.size() != 1 || wanted[0] != root_node))
    raise<input_error>("the policy asks about node ", wanted[0], " first; it must be the root, alone.");
  if (!is_first && std::find(wanted.begin(), wanted.end(), root_node) != wanted.end())
    raise<input_error>("the policy asks about node 0, the root, twice in one round.");
}

// Checks that was() has an entry for every node: the number that the node had before the tree was built anew.
template <class TreeT>
void require_was(const TreeT& tree, std::span<const node_id> was) {
  if (was.size() != static_cast<std::size_t>(tree.size())) {
    raise<input_error>("the policy says of ", was.size(), " nodes what they were before, but the tree has ",
                       tree.size(), ".");
  }
}

// Checks that the tree has no more drafted tokens than there is room for.
template <class TreeT>
void require_budget(const TreeT& tree, std::int32_t most) {
  if (tree.view().n_draws > most) {
    raise<input_error>("the policy keeps ", tree.view().n_draws, " drafted tokens; here it may keep at most ", most,
                       ".");
  }
}

// A call of a policy's function that takes the drafter's answer: take(), or one of its halves, consider() and choose().
enum class half { take, consider, choose };
template <half Which, class PolicyT, class TreeT, class AnswerT>
struct policy_step {
  PolicyT& policy;
  TreeT& tree;
  const AnswerT& answer;

  template <class ChanceT>
  requires(Which != half::take ||
           requires(PolicyT & p, TreeT& t, const AnswerT& a, ChanceT& c) { p.take(t, a, c); }) auto
  operator()(ChanceT& chance) const {
    if constexpr (Which == half::consider)
      return policy.consider(tree, answer, chance);
    else if constexpr (Which == half::choose)
      return policy.choose(tree, answer, chance);
    else
      return policy.take(tree, answer, chance);
  }
};

// The state of a tree that grows step by step: the nodes that are wanted, and the part of the drafter that is asked
// about them. Between wanted() and take() that part is asked, alone or together with the drafters of other texts.
class growth {
 public:
  // Begins to grow a tree, which holds the root.
  template <class PolicyT, class TreeT, class DrafterT>
  void begin(PolicyT& policy, TreeT& tree, DrafterT& drafter) {
    constexpr std::size_t n = n_parts<DrafterT>;
    static_assert(n <= 64, "a joint has at most 64 drafters");
    part_ = 0;
    was_asked_ = 0;
    most_ = (std::min)(policy.max_nodes(), tree.limit());
    if constexpr (AsksParts<PolicyT>) {
      std::int32_t rooms[n];
      for (std::size_t part = 0; part < n; ++part)
        rooms[part] = room_of(drafter, part);
      policy.limit_parts(rooms);
    }
    if (tree.limit() > 0) require_states<DrafterT>(policy);
    // The tree may have no room for drafted tokens, and no_drafter cannot be asked.
    const bool can_ask = AskableDrafter<part_type<DrafterT, 0>> && tree.limit() > 0;
    const auto wanted = std::span<const node_id>(policy.begin(tree));
    want(policy, tree, drafter, can_ask ? wanted : std::span<const node_id>());
  }

  // Ends the growth where it stands: nothing more is asked.
  void stop() { wanted_ = {}; }

  // Returns the nodes that a part of the drafter is to be asked about; none once the tree has grown.
  std::span<const node_id> wanted() const { return wanted_; }
  // Returns the number of that part.
  std::size_t part() const { return part_; }
  // Returns the length of the longest run of tokens that the policy can take. A policy of several parts resets the
  // tree with the limit of the part that is asked: the tree's limit is then that length.
  template <class PolicyT, class TreeT>
  std::int32_t most_tokens(const PolicyT&, const TreeT& tree) const {
    return AsksParts<PolicyT> ? tree.limit() : most_;
  }

  // Does the second half of take(), for policies that share a budget.
  template <class PolicyT, class TreeT, class DrafterT, class AnswerT, class ChanceT>
  void choose(PolicyT& policy, TreeT& tree, DrafterT& drafter, const AnswerT& answer, ChanceT& chance) {
    const policy_step<half::choose, PolicyT, TreeT, AnswerT> step{policy, tree, answer};
    want(policy, tree, drafter, with_checked_draws<PolicyT::sampling>(tree, answer, chance, step));
  }

  // Hands the policy the answer of this part of the drafter about the nodes that were wanted.
  template <std::size_t Index, class PolicyT, class TreeT, class DrafterT, class AnswerT, class ChanceT>
  void take(part_index<Index> index, PolicyT& policy, TreeT& tree, DrafterT& drafter, const AnswerT& answer,
            ChanceT& chance) {
    if constexpr (AsksParts<PolicyT>) {
      want(policy, tree, drafter, policy.template take<Index>(tree, answer, chance));
    } else {
      if (wanted_[0] == root_node) show_draft_states(policy, part_of(drafter, index));
      const policy_step<half::take, PolicyT, TreeT, AnswerT> step{policy, tree, answer};
      want(policy, tree, drafter, with_checked_draws<PolicyT::sampling>(tree, answer, chance, step));
    }
  }

  // Ends the growth: the parts of the drafter take the final numbers of the nodes, if the tree was built anew.
  template <class PolicyT, class TreeT, class DrafterT>
  void end(PolicyT& policy, TreeT& tree, DrafterT& drafter) const {
    for_each_part(drafter, [&](auto& part, auto index) { renumber(policy, tree, part, index); });
    require_budget(tree, most_);
#if ESPALIER_CHECKS
    if constexpr (!AsksParts<PolicyT> && StepDrafter<part_type<DrafterT, 0>>) {
      if (tree.size() > 1) check_growth<PolicyT::sampling>(tree, part_of(drafter, part_index<0>()).rows());
    }
#endif
  }

 private:
  // Tells a part of the drafter the final numbers of the nodes, if the policy built the tree anew.
  template <class PolicyT, class TreeT, class PartT, std::size_t Index>
  static void renumber(PolicyT& policy, const TreeT& tree, PartT& part, part_index<Index> index) {
    static_assert(!AsksParts<PolicyT> || !StepDrafter<PartT> || RenumberingDrafter<PartT>,
                  "a cascade builds the tree anew: each of its step drafters must have renumber(was) to follow");
    if constexpr (AsksParts<PolicyT> && RenumberingDrafter<PartT>) {
      require_was(tree, policy.was(index));
      part.renumber(policy.was(index));
    } else if constexpr (RebuildingPolicy<PolicyT> && RenumberingDrafter<PartT>) {
      if (policy.was().empty()) return;
      require_was(tree, policy.was());
      part.renumber(policy.was());
    }
  }

  template <class PolicyT, class TreeT, class DrafterT>
  void want(const PolicyT& policy, const TreeT& tree, DrafterT& drafter, std::span<const node_id> wanted) {
    wanted_ = wanted;
    if (wanted.empty()) return;
    require_wanted(tree, wanted);
    if constexpr (AsksParts<PolicyT>) {
      part_ = policy.part();
      if (part_ >= n_parts<DrafterT>)
        raise<input_error>("the policy asks drafter ", part_, ", but there are ", n_parts<DrafterT>, ".");
    }
    with_part(drafter, part_, [&]<class PartT>(PartT&, auto) {
      if constexpr (StepDrafter<PartT>) require_root(wanted_, (was_asked_ >> part_ & 1) == 0);
    });
    was_asked_ |= std::uint64_t{1} << part_;
  }

  std::span<const node_id> wanted_;
  std::size_t part_ = 0;
  std::uint64_t was_asked_ = 0;  // bit i: part i was asked in this round
  std::int32_t most_ = 0;
};

// Resets the tree to the root of a round after a text of `size` tokens. The tree may take `room` draws, or fewer if the
// drafter's or the tree's capacity leaves less. It may take none if `left`, the number of tokens that may still be
// written, is at most 1: that token is the target's own.
template <class TreeT, class DrafterT>
void open_tree(TreeT& tree, const DrafterT& drafter, token_id root, std::int32_t size, std::int32_t left,
               std::int32_t room) {
  room = left > 1 ? (std::min)(room, drafter.capacity() - size) : 0;
  tree.reset(root, (std::min)(tree.capacity(), room));
}

// Ends the growth of a tree, and checks that it has no more draws than a round's pass takes, and that its tokens are in
// the vocabulary.
template <class PolicyT, class TreeT, class DrafterT>
void close_tree(const growth& g, PolicyT& policy, TreeT& tree, DrafterT& drafter, std::int32_t max_nodes,
                std::int32_t vocab) {
  g.end(policy, tree, drafter);
  require_budget(tree, max_nodes);
  require_tokens(tree.view(), vocab);
}

// A function that keeps all of an answer: see grow_step().
struct whole_answer {
  template <class AnswerT>
  AnswerT operator()(AnswerT answer, std::int32_t) const {
    return answer;
  }
};

// Asks the drafter of one text about the nodes that its tree wants. The policy takes keep(answer, most) instead of the
// answer; `most` is the greatest number of tokens of a run.
template <class PolicyT, class TreeT, class DrafterT, class ChanceT, class KeepT = whole_answer>
void grow_step(growth& g, PolicyT& policy, TreeT& tree, DrafterT& drafter, ChanceT& chance, KeepT&& keep = {}) {
  const std::int32_t most = g.most_tokens(policy, tree);
  with_part(drafter, g.part(), [&]<class PartT>(PartT& part, auto index) {
    if constexpr (AskableDrafter<PartT>)
      g.take(index, policy, tree, drafter, keep(ask(part, tree, g.wanted(), most), most), chance);
  });
}

}  // namespace detail

//! Grows the tree of a round, which holds the root: asks the drafter about the nodes that the policy wants until it
//! wants none.
//!
//! Complexity  the policy's steps, each one call of a part of the drafter; no allocation
//! Errors      input_error if a policy asks about a node that does not exist, asks a part of the drafter that does not
//!             exist, asks a step drafter about another node than the root first, or about the root later, keeps more
//!             nodes than it may, or returns a was() that has not one entry for each node; option_error if it reads
//!             states that the drafter does not keep; errors of policy and drafter; where ESPALIER_CHECKS is 1, errors
//!             of check_growth()
template <class PolicyT, class TreeT, class DrafterT, Chance ChanceT>
requires TreePolicy<std::remove_reference_t<PolicyT>, DrafterT, ChanceT>
void grow(PolicyT&& policy, TreeT& tree, DrafterT& drafter, ChanceT& chance) {
  detail::growth g;
  for (g.begin(policy, tree, drafter); !g.wanted().empty();)
    detail::grow_step(g, policy, tree, drafter, chance);
  g.end(policy, tree, drafter);
}

}  // namespace espalier
