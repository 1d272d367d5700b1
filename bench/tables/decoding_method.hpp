// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "espalier/drafter/no_drafter.hpp"
#include "espalier/kv_store/sink_window.hpp"
#include "espalier/tree_policy/adaptive_chain.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/eagle2.hpp"
#include "espalier/tree_policy/fixed.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "model_set.hpp"
#include "text_writer.hpp"

namespace bench {

//! A chain that the draft model drafts over a window of the text and its first tokens (StreamingLLM).
struct streaming_chain {
  espalier::chain_options chain{.length = 5};
  espalier::sink_window_options window{.sinks = 4, .window = 128, .block = 64, .scratch = 64};
};

//! A way of decoding greedily, with its options.
struct decoding_method {
  std::string name;
  std::variant<espalier::plain, espalier::chain_options, streaming_chain, espalier::adaptive_chain_options,
               espalier::eagle2_options, espalier::fixed_options, espalier::dynatree_options>
      policy;
};

inline espalier::chain policy_of(espalier::chain_options options) {
  return espalier::chain(options);
}
inline espalier::adaptive_chain policy_of(espalier::adaptive_chain_options options) {
  return espalier::adaptive_chain(options);
}
inline espalier::eagle2 policy_of(espalier::eagle2_options options) {
  return espalier::eagle2(options);
}
inline espalier::fixed policy_of(espalier::fixed_options options) {
  return espalier::fixed(options);
}
inline espalier::dynatree policy_of(espalier::dynatree_options options) {
  return espalier::dynatree(options);
}

//! Decodes greedily with a pair of models.
class greedy_writer {
 public:
  explicit greedy_writer(models::model_set& models, const models::price_table* price = nullptr)
      : writer_(models, price) {}

  //! Writes max_tokens tokens, also past an end of text, and calls `watch` for each round; neither model has seen the
  //! prompt before.
  written_text write(
      const decoding_method& method, std::span<const espalier::token_id> prompt, int max_tokens,
      const round_watcher& watch = [](const espalier::round_record&) {}) {
    return std::visit(
        [&](const auto& options) {
          if constexpr (std::is_same_v<std::remove_cvref_t<decltype(options)>, espalier::plain>) {
            return writer_.write(espalier::no_drafter(), options, espalier::greedy(), prompt, {max_tokens}, watch);
          } else if constexpr (std::is_same_v<std::remove_cvref_t<decltype(options)>, streaming_chain>) {
            return writer_.write(writer_.draft(options.window), policy_of(options.chain), espalier::greedy(), prompt,
                                 {max_tokens}, watch);
          } else {
            return writer_.write(writer_.draft(), policy_of(options), espalier::greedy(), prompt, {max_tokens}, watch);
          }
        },
        method.policy);
  }

 private:
  text_writer writer_;
};

//! The fixed tree that both papers compare with: the first paper's generator with D = 5, B = 2 and tau = 0.05.
inline espalier::dynatree_options fixed_tree_of_papers() {
  auto options = espalier::dynatree_options::first_paper();
  options.base_depth = options.max_depth = 5;
  options.min_breadth = options.mid_breadth = options.max_breadth = 2;
  options.prune_probability = 0.05;
  return options;
}

//! The methods of DynaTree's tables: the methods of Table 1 of both papers and of the ablation of Table 4 (second
//! paper), the first paper's tree, EAGLE-2's, and a tree of the fixed tree's depth and breadth that is not pruned.
inline std::vector<decoding_method> paper_methods() {
  espalier::dynatree_options without_history;
  without_history.history = false;
  return {{"plain", espalier::plain()},
          {"assisted generation", espalier::adaptive_chain_options()},
          {"chain K=5", espalier::chain_options{.length = 5}},
          {"chain K=6", espalier::chain_options{.length = 6}},
          {"chain K=7", espalier::chain_options{.length = 7}},
          {"StreamingLLM + chain", streaming_chain()},
          {"unpruned D=5 B=2", espalier::fixed_options{.depth = 5, .breadth = 2, .budget = 64}},
          {"fixed tree", fixed_tree_of_papers()},
          {"+ breadth and depth", without_history},
          {"+ history", espalier::dynatree_options()},
          {"first paper", espalier::dynatree_options::first_paper()},
          {"EAGLE-2", espalier::eagle2_options()}};
}

}  // namespace bench
