// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/cost/cost_model.hpp"
#include "espalier/decoder/statistics.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/tree_policy/adaptive_chain.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/tree_policy/cost_aware_draws.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/dyspec_greedy.hpp"
#include "espalier/tree_policy/dyspec_threshold.hpp"
#include "espalier/tree_policy/fixed.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"
#include "static_tree.hpp"
#include "text_writer.hpp"

namespace bench {

//! A policy with its settings and its verifier.
struct timed_method {
  std::string name;
  std::function<espalier::statistics(text_writer&, std::span<const espalier::token_id>, const text_options&)> write;
};

//! The method of a policy and a verifier. If the target decodes greedily, the draft's rows have temperature 1; else
//! they are sampled as the target's.
template <class PolicyT, class VerifierT>
timed_method timed(std::string name, PolicyT policy, VerifierT verifier) {
  return {std::move(name), [policy, verifier](text_writer& writer, std::span<const espalier::token_id> prompt,
                                              const text_options& how) mutable {
            espalier::sampling_options draft = how.decoding.text.sampling;
            if (!(draft.temperature > 0)) draft = {.temperature = 1.0F};
            return writer.write(writer.draft(draft), policy, verifier, prompt, how).stats;
          }};
}

//! As timed(), with a policy that is made anew for each text, since the costs of passes may have changed.
template <class PolicyT, class VerifierT>
timed_method timed_at(const espalier::cost_model& costs, std::string name, VerifierT verifier) {
  return {std::move(name),
          [&costs, verifier](text_writer& writer, std::span<const espalier::token_id> prompt, const text_options& how) {
            return timed("", PolicyT({}, costs), verifier).write(writer, prompt, how);
          }};
}

template <class VerifierT>
timed_method plain_method(VerifierT verifier) {
  return {"plain",
          [verifier](text_writer& writer, std::span<const espalier::token_id> prompt, const text_options& how) mutable {
            return writer.write(espalier::no_drafter(), espalier::plain(), verifier, prompt, how).stats;
          }};
}

//! The methods for greedy texts: plain decoding, then every static setting and the policies that adapt without knowing
//! times, and the cost-aware policy last. It reads `costs` whenever it begins a text.
inline std::vector<timed_method> greedy_methods(const espalier::cost_model& costs) {
  const espalier::greedy verifier;
  std::vector<timed_method> list{plain_method(verifier)};
  for (int length = 1; length <= 12; ++length)
    list.push_back(timed(fmt::format("chain {}", length), espalier::chain({.length = length}), verifier));
  for (const espalier::fixed_options o : {espalier::fixed_options{.depth = 2, .breadth = 2, .budget = 6},
                                          espalier::fixed_options{.depth = 3, .breadth = 2, .budget = 14},
                                          espalier::fixed_options{.depth = 2, .breadth = 3, .budget = 12}})
    list.push_back(timed(fmt::format("fixed D={} B={}", o.depth, o.breadth), espalier::fixed(o), verifier));
  for (const int budget : {4, 6, 8, 12, 16}) {
    list.push_back(timed(fmt::format("best-first {}", budget),
                         espalier::best_first({.budget = budget, .max_depth = 16}), verifier));
  }
  list.push_back(timed("adaptive chain", espalier::adaptive_chain(), verifier));
  list.push_back(
      timed("dynatree, first paper", espalier::dynatree(espalier::dynatree_options::first_paper()), verifier));
  espalier::dynatree_options second;
  list.push_back(timed("dynatree, history", espalier::dynatree(second), verifier));
  second.history = false;
  list.push_back(timed("dynatree, no history", espalier::dynatree(second), verifier));
  // The setting that bench_tables_dynatree has found to be fastest on other prompts.
  espalier::dynatree_options tuned = espalier::dynatree_options::first_paper();
  tuned.budget = 24;
  tuned.min_breadth = tuned.mid_breadth = tuned.max_breadth = 2;
  tuned.prune_probability = 0.1;
  list.push_back(timed("dynatree, first paper, tuned", espalier::dynatree(tuned), verifier));
  tuned = second;
  tuned.budget = 16;
  tuned.min_breadth = tuned.mid_breadth = tuned.max_breadth = 1;
  tuned.base_depth = tuned.max_depth = 16;
  tuned.prune_probability = tuned.stop_probability = tuned.deep_probability = 0.03;
  list.push_back(timed("dynatree, tuned", espalier::dynatree(tuned), verifier));
  list.push_back(timed_at<espalier::cost_aware>(costs, "cost-aware", verifier));
  return list;
}

//! The methods for sampled texts. Traversal accepts most tokens of each policy's trees; with one path it is block
//! verification.
inline std::vector<timed_method> sampled_methods(const espalier::cost_model& costs) {
  const espalier::traversal verifier;
  const espalier::traversal_without_replacement distinct;
  std::vector<timed_method> list{plain_method(espalier::target_only())};
  for (int length = 1; length <= 12; ++length) {
    list.push_back(
        timed(fmt::format("sampled chain {}", length), espalier::sampled_chain({.length = length}), verifier));
  }
  for (const static_tree tree :
       {static_tree{.paths = 2, .trunk = 0, .length = 2}, static_tree{.paths = 2, .trunk = 0, .length = 3},
        static_tree{.paths = 3, .trunk = 0, .length = 2}, static_tree{.paths = 2, .trunk = 1, .length = 2},
        static_tree{.paths = 2, .trunk = 2, .length = 2}, static_tree{.paths = 2, .trunk = 3, .length = 2}}) {
    list.push_back(timed(fmt::format("{} {}", tree.trunk == 0 ? "paths" : "delayed", in_words(tree)),
                         espalier::delayed(tree), verifier));
  }
  for (const int budget : {3, 4, 5, 6, 8}) {
    list.push_back(
        timed(fmt::format("dyspec greedy {}", budget), espalier::dyspec_greedy({.budget = budget}), distinct));
  }
  for (const espalier::dyspec_threshold_options o :
       {espalier::dyspec_threshold_options{.budget = 8, .threshold = 0.2, .adapt = false},
        espalier::dyspec_threshold_options{.budget = 8, .threshold = 0.4, .adapt = false},
        espalier::dyspec_threshold_options{.budget = 16, .threshold = 0.4, .adapt = false},
        espalier::dyspec_threshold_options{.budget = 16, .threshold = 0.7, .adapt = false}}) {
    list.push_back(timed(fmt::format("dyspec threshold {:g}, at most {}", o.threshold, o.budget),
                         espalier::dyspec_threshold(o), distinct));
  }
  list.push_back(timed_at<espalier::cost_aware_draws>(costs, "cost-aware", distinct));
  return list;
}

}  // namespace bench
