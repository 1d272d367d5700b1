// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/hana/for_each.hpp>
#include <boost/hana/tuple.hpp>

#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/sampling_options.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/ngram.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/slot_ledger.hpp"
#include "espalier/registry/part.hpp"
#include "espalier/selector/neural_delayed.hpp"
#include "espalier/tree_policy/adaptive_chain.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/tree_policy/cost_aware_draws.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/dyspec_greedy.hpp"
#include "espalier/tree_policy/dyspec_threshold.hpp"
#include "espalier/tree_policy/eagle2.hpp"
#include "espalier/tree_policy/fixed.hpp"
#include "espalier/tree_policy/iid_paths.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/tree_policy/sequoia.hpp"
#include "espalier/tree_policy/specinfer_static.hpp"
#include "espalier/verifier/block_verification.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/khisti.hpp"
#include "espalier/verifier/multi_path_block.hpp"
#include "espalier/verifier/naive.hpp"
#include "espalier/verifier/naive_tree.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/spectr.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"

//! The only lists of the library's tree policies (but cascade, which needs several drafters) and verifiers. From these
//! lists tests and benchmarks make every combination, and programs make their flags and JSON, so that a part that is
//! added here appears everywhere. The lists are for host code; core/ and decoder/ do not use them.

namespace espalier {

inline constexpr auto tree_policies = boost::hana::make_tuple(
    part<plain>{"plain", "no draft: one token a round"},
    part<chain, chain_options>{"chain", "the draft's most probable tokens, one after the other"},
    part<adaptive_chain, adaptive_chain_options>{"adaptive-chain",
                                                 "a chain as long as lately accepted, while confident"},
    part<sampled_chain, sampled_chain_options>{"sampled-chain", "one path drawn from the draft"},
    part<iid_paths, iid_paths_options>{"iid-paths", "independent paths drawn from the draft"},
    part<specinfer_static, specinfer_static_options>{"specinfer-static",
                                                     "independent draws, as many a node as its level says"},
    part<delayed, delayed_options>{"delayed", "one path drawn from the draft, then independent ones from its end"},
    part<neural_delayed<>, neural_delayed_options>{"neural-delayed",
                                                   "the same, its three numbers chosen by a network every round"},
    part<dyspec_greedy, dyspec_greedy_options>{"dyspec-greedy", "draws where the next one is most likely to be needed"},
    part<dyspec_threshold, dyspec_threshold_options>{"dyspec-threshold", "the same, level by level, above a threshold"},
    part<dyspec_threshold, dyspec_threshold_options>{"dyspec-adaptive",
                                                     "the same, the threshold falling until the budget is spent",
                                                     {.threshold = 0.1, .fill = true}},
    part<sequoia, sequoia_options>{"sequoia", "draws in the shape that is best for acceptance by rank"},
    part<cost_aware_draws, cost_aware_options>{"cost-aware-draws",
                                               "draws as long as they are worth their time, or none"},
    part<fixed, fixed_options>{"fixed", "a tree of the same shape every round"},
    part<dynatree, dynatree_options>{"dynatree", "a tree shaped by the draft's confidence and by history"},
    part<dynatree, dynatree_options>{"dynatree-first", "DynaTree's first paper: one breadth, one threshold",
                                     dynatree_options::first_paper()},
    part<eagle2, eagle2_options>{"eagle2", "the most probable paths expanded, the most probable nodes kept"},
    part<best_first, best_first_options>{"best-first", "the most probable prefixes (DDTree, OPT-Tree)"},
    part<cost_aware, cost_aware_options>{"cost-aware",
                                         "the most probable prefixes that are worth their time, or none"});

inline constexpr auto verifiers = boost::hana::make_tuple(
    part<greedy>{"greedy", "follow the target's most probable token"},
    part<target_only>{"target-only", "draw from the target, follow what was drafted"},
    part<naive>{"naive", "test the tokens of one path, one after the other"},
    part<naive_tree>{"naive-tree", "test the first draw of each node"},
    part<spectr>{"spectr", "test the draws of each node in order, all by one factor"},
    part<specinfer>{"specinfer", "test the draws of each node in random order"},
    part<khisti, khisti_options>{"khisti", "let the draws of each node compete, test the winner"},
    part<block_verification>{"block-verification", "test the tokens of one path together"},
    part<multi_path_block>{"multi-path-block", "select the best draw of each node, test this path as a whole"},
    part<traversal>{"traversal", "test the tree from its leaves up"},
    part<traversal_without_replacement>{"traversal-distinct", "the same, each token of a node once"},
    part<residual_walk>{"residual-walk", "test the different draws of each node in turn"});

//! True if a policy needs a drafter: it is no TreePolicy over no_drafter.
template <class PolicyT>
inline constexpr bool drafts = !TreePolicy<PolicyT, no_drafter, philox_chance>;

//! Calls f(policy, verifier), with an object of type part for each, for every pair in which the verifier is lossless
//! for the policy's trees. The lists may be given, for example copies of the library's lists with other options.
template <class PoliciesT, class VerifiersT, class FunctionT>
constexpr void for_each_compatible_pair(const PoliciesT& from, const VerifiersT& with, FunctionT&& f) {
  boost::hana::for_each(from, [&]<class PolicyT>(const PolicyT& policy) {
    boost::hana::for_each(with, [&]<class VerifierT>(const VerifierT& verifier) {
      if constexpr (compatible(PolicyT::type::sampling, VerifierT::type::lossless)) f(policy, verifier);
    });
  });
}

template <class FunctionT>
constexpr void for_each_compatible_pair(FunctionT&& f) {
  for_each_compatible_pair(tree_policies, verifiers, f);
}

}  // namespace espalier
