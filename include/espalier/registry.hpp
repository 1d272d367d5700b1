// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <boost/hana/for_each.hpp>
#include <boost/hana/tuple.hpp>
#include <string_view>

#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/ngram.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/slot_ledger.hpp"
#include "espalier/registry/known_value.hpp"
#include "espalier/registry/option.hpp"
#include "espalier/registry/part.hpp"
#include "espalier/sampling/sampler.hpp"
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
#include "espalier/tree_policy/neural_delayed.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/tree_policy/sequoia.hpp"
#include "espalier/tree_policy/specinfer_static.hpp"
#include "espalier/verifier/block.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/khisti.hpp"
#include "espalier/verifier/naive.hpp"
#include "espalier/verifier/naive_tree.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/spectr.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"

//! The only list of the library's parts. Tests and benchmarks make every combination from it, programs their flags and
//! JSON: a part that is added here appears in all of them. For host code; core/ and decoder/ do not know it.

namespace espalier {

template <>
inline constexpr auto options_of<sampling_options> = boost::hana::make_tuple(
    option{"temperature", &sampling_options::temperature, 0, 100, "0 takes the most probable token"},
    option{"top_k", &sampling_options::top_k, 0, 1 << 30, "only the k most probable tokens; 0: all"},
    option{"top_p", &sampling_options::top_p, 1e-6, 1, "only the most probable tokens that reach this probability"},
    option{"min_p", &sampling_options::min_p, 0, 1, "only tokens this fraction as probable as the most probable"});

template <>
inline constexpr auto options_of<prompt_lookup_options> = boost::hana::make_tuple(
    option{"max_ngram", &prompt_lookup_options::max_ngram, 1, 16, "last tokens that are looked for first"},
    option{"min_ngram", &prompt_lookup_options::min_ngram, 1, 16, "and last, one fewer each time"},
    option{"capacity", &prompt_lookup_options::capacity, 1, 1 << 20, "longest text, in tokens"});

template <>
inline constexpr auto options_of<ngram_options> =
    boost::hana::make_tuple(option{"order", &ngram_options::order, 2, 16,
                                   "tokens of an n-gram, the drafted one included, that are tried first"},
                            option{"min_order", &ngram_options::min_order, 2, 16, "and last, one fewer each time"},
                            option{"capacity", &ngram_options::capacity, 1, 1 << 20, "longest text, in tokens"});

template <>
inline constexpr auto options_of<chain_options> = boost::hana::make_tuple(option{"length", &chain_options::length, 1,
                                                                                 1024, "drafted tokens a round"});

template <>
inline constexpr auto options_of<adaptive_chain_options> = boost::hana::make_tuple(
    option{"length", &adaptive_chain_options::length, 1, 1024, "drafted tokens of the first round"},
    option{"max_length", &adaptive_chain_options::max_length, 1, 1024, "drafted tokens a round at most"},
    option{"confidence", &adaptive_chain_options::confidence, 0, 1, "a less probable token is the last one drafted"});

template <>
inline constexpr auto options_of<fixed_options> =
    boost::hana::make_tuple(option{"depth", &fixed_options::depth, 1, 64, "levels below the root"},
                            option{"breadth", &fixed_options::breadth, 1, 64, "children of every node"},
                            option{"budget", &fixed_options::budget, 2, 65536, "drafted tokens a round at most"});

template <>
inline constexpr auto options_of<dynatree_options> = boost::hana::make_tuple(
    option{"budget", &dynatree_options::budget, 2, 65536, "drafted tokens a round at most"},
    option{"base_depth", &dynatree_options::base_depth, 1, 64, "depth to which likely and unlikely paths grow alike"},
    option{"max_depth", &dynatree_options::max_depth, 1, 64, "depth of the deepest expanded node; the first has 0"},
    option{"min_breadth", &dynatree_options::min_breadth, 1, 64, "children of a confident node"},
    option{"mid_breadth", &dynatree_options::mid_breadth, 1, 64, "children of a node in between"},
    option{"max_breadth", &dynatree_options::max_breadth, 1, 64, "children of an unsure node"},
    option{"high_confidence", &dynatree_options::high_confidence, 0, 1, "from here on a node is confident"},
    option{"low_confidence", &dynatree_options::low_confidence, 0, 1, "below this a node is unsure"},
    option{"prune_probability", &dynatree_options::prune_probability, 0, 1, "less likely paths end"},
    option{"stop_probability", &dynatree_options::stop_probability, 0, 1, "less likely paths end, too"},
    option{"deep_probability", &dynatree_options::deep_probability, 0, 1, "less likely paths end at the base depth"},
    option{"history", &dynatree_options::history, 0, 1, "adapt to what was accepted lately"});

template <>
inline constexpr auto options_of<best_first_options> = boost::hana::make_tuple(
    option{"budget", &best_first_options::budget, 1, 1024, "drafted tokens a round"},
    option{"max_depth", &best_first_options::max_depth, 1, 64, "levels below the root"},
    option{"min_gain", &best_first_options::min_gain, 0, 1, "a level that gains no more expected tokens is the last"});

template <>
inline constexpr auto options_of<eagle2_options> = boost::hana::make_tuple(
    option{"beam", &eagle2_options::beam, 1, 64, "nodes asked about in a level, and children of each"},
    option{"depth", &eagle2_options::depth, 0, 64, "levels asked about below the root"},
    option{"budget", &eagle2_options::budget, 1, 1024, "drafted tokens kept"});

template <>
inline constexpr auto options_of<sampled_chain_options> = boost::hana::make_tuple(option{
    "length", &sampled_chain_options::length, 0, 64, "drafted tokens a round"});

template <>
inline constexpr auto options_of<iid_paths_options> =
    boost::hana::make_tuple(option{"paths", &iid_paths_options::paths, 1, 64, "independent paths"},
                            option{"length", &iid_paths_options::length, 0, 64, "drafted tokens of each"});

template <>
inline constexpr auto options_of<delayed_options> =
    boost::hana::make_tuple(option{"paths", &delayed_options::paths, 1, 64, "independent paths"},
                            option{"trunk", &delayed_options::trunk, 0, 64, "drafted tokens before they part"},
                            option{"length", &delayed_options::length, 0, 64, "drafted tokens of each after that"});

template <>
inline constexpr auto options_of<neural_delayed_options> = boost::hana::make_tuple(
    option{"paths", &neural_delayed_options::paths, 1, 4, "independent paths, where no selector chooses"},
    option{"trunk", &neural_delayed_options::trunk, 0, 8, "drafted tokens before they part, where none chooses"},
    option{"length", &neural_delayed_options::length, 0, 8, "drafted tokens of each after that, where none chooses"});

template <>
inline constexpr auto options_of<specinfer_static_options> = boost::hana::make_tuple(
    option{"budget", &specinfer_static_options::budget, 1, 1024, "drafted tokens a round at most"},
    option{"level_1", &specinfer_static_options::level_1, 0, 64, "draws from the root"},
    option{"level_2", &specinfer_static_options::level_2, 0, 64, "draws from each node of level 1; 0 ends the tree"},
    option{"level_3", &specinfer_static_options::level_3, 0, 64, "draws from each node of level 2; and so on"},
    option{"level_4", &specinfer_static_options::level_4, 0, 64, "draws from each node of level 3"},
    option{"level_5", &specinfer_static_options::level_5, 0, 64, "draws from each node of level 4"},
    option{"level_6", &specinfer_static_options::level_6, 0, 64, "draws from each node of level 5"},
    option{"level_7", &specinfer_static_options::level_7, 0, 64, "draws from each node of level 6"},
    option{"level_8", &specinfer_static_options::level_8, 0, 64, "draws from each node of level 7"});

template <>
inline constexpr auto options_of<sequoia_options> =
    boost::hana::make_tuple(option{"budget", &sequoia_options::budget, 1, 1024, "drafted tokens a round"},
                            option{"max_depth", &sequoia_options::max_depth, 1, 64, "levels below the root at most"});

template <>
inline constexpr auto options_of<dyspec_greedy_options> = boost::hana::make_tuple(option{
    "budget", &dyspec_greedy_options::budget, 1, 1024, "drafted tokens a round"});

template <>
inline constexpr auto options_of<dyspec_threshold_options> = boost::hana::make_tuple(
    option{"budget", &dyspec_threshold_options::budget, 1, 1024, "drafted tokens a round at most"},
    option{"max_depth", &dyspec_threshold_options::max_depth, 1, 64, "levels below the root"},
    option{"threshold", &dyspec_threshold_options::threshold, 0, 1, "draws less likely to be needed are not made"},
    option{"fill", &dyspec_threshold_options::fill, 0, 1, "at the end, lower the threshold until the budget is spent"});

template <>
inline constexpr auto options_of<cost_aware_options> = boost::hana::make_tuple(
    option{"budget", &cost_aware_options::budget, 1, 1024, "drafted tokens a round at most"},
    option{"max_depth", &cost_aware_options::max_depth, 1, 64, "levels below the root"},
    option{"draft_cost", &cost_aware_options::draft_cost, 0, 100, "a draft pass over a plain round, if not measured"},
    option{"row_cost", &cost_aware_options::row_cost, 0, 100, "a further row over its pass's first, if not measured"});

template <>
inline constexpr auto options_of<khisti_options> = boost::hana::make_tuple(option{
    "window", &khisti_options::window, 0, 15, "tokens among which pairs are shared to the best effect"});

template <>
inline constexpr auto options_of<decoder_options> =
    boost::hana::make_tuple(option{"seed", &decoder_options::seed, 0, unbounded, "equal seeds write equal texts"},
                            option{"order", &decoder_options::order, 0, 3, "of a tree's rows in the forward pass"});

template <>
inline constexpr auto known_values<node_order> =
    std::array{known_value<node_order>{node_order::insertion, "insertion", "as drafted"},
               known_value<node_order>{node_order::breadth_first, "breadth-first", "level by level"},
               known_value<node_order>{node_order::depth_first, "depth-first", "path by path"},
               known_value<node_order>{node_order::heavy_path, "heavy-path", "path by path, larger subtree first"}};

template <>
inline constexpr auto known_values<commit_mode> = std::array{
    known_value<commit_mode>{commit_mode::compact, "compact", "move accepted cache rows together"},
    known_value<commit_mode>{commit_mode::truncate, "truncate", "forward accepted tokens again in the next round"}};

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
    part<block>{"block", "test the tokens of one path together"},
    part<traversal>{"traversal", "test the tree from its leaves up"},
    part<traversal_without_replacement>{"traversal-distinct", "the same, each token of a node once"},
    part<residual_walk>{"residual-walk", "test the different draws of each node in turn"});

//! Whether a policy asks a drafter anything.
template <class PolicyT>
inline constexpr bool drafts = !TreePolicy<PolicyT, no_drafter, philox_chance>;

//! Whether a verifier works at temperature 0 only.
template <class VerifierT>
inline constexpr bool is_argmax_only = requires {
  requires VerifierT::argmax_only;
};

//! Calls f(policy, verifier), two parts, for every pair that is lossless together; of the given lists, which may be
//! copies of the known ones with other options.
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
