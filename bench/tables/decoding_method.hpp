// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "espalier/decoder/decoder.hpp"
#include "espalier/decoder/statistics.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/fixed.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "model_folder.hpp"

namespace bench {

//! A way of decoding greedily, with its options.
struct decoding_method {
  std::string name;
  std::variant<espalier::plain, espalier::chain_options, espalier::fixed_options, espalier::dynatree_options> policy;
};

//! What one method wrote after one prompt, and what that took.
struct written_text {
  std::vector<espalier::token_id> tokens;
  espalier::statistics stats;
};

//! Decodes greedily with a pair of models, each with a cache of its own.
class greedy_writer {
 public:
  explicit greedy_writer(models::model_folder& models)
      : models_(models),
        compacting_(models.make_cache(models.target)),
        truncating_(models.make_cache(models.target, espalier::commit_mode::truncate)),
        draft_kv_(models.make_cache(models.draft)) {}

  //! Writes max_tokens tokens, past any end of text; neither model has seen the prompt before.
  written_text write(const decoding_method& method, std::span<const espalier::token_id> prompt, int max_tokens,
                     espalier::commit_mode commit = espalier::commit_mode::compact,
                     espalier::node_order order = espalier::node_order::insertion) {
    return std::visit(
        [&](const auto& options) {
          if constexpr (std::is_same_v<std::remove_cvref_t<decltype(options)>, espalier::plain>) {
            return run(espalier::no_drafter(), options, prompt, max_tokens, commit, order);
          } else {
            return run(espalier::autoregressive(models_.draft, draft_kv_), policy_of(options), prompt, max_tokens,
                       commit, order);
          }
        },
        method.policy);
  }

 private:
  static espalier::chain policy_of(espalier::chain_options options) { return espalier::chain(options); }
  static espalier::fixed policy_of(espalier::fixed_options options) { return espalier::fixed(options); }
  static espalier::dynatree policy_of(espalier::dynatree_options options) { return espalier::dynatree(options); }

  template <class DrafterT, class PolicyT>
  written_text run(DrafterT drafter, PolicyT policy, std::span<const espalier::token_id> prompt, int max_tokens,
                   espalier::commit_mode commit, espalier::node_order order) {
    auto& kv = commit == espalier::commit_mode::compact ? compacting_ : truncating_;
    auto decode = espalier::make_decoder(drafter, policy, espalier::greedy(), kv, models_.target, {.order = order});
    written_text result;
    const auto tokens = decode.generate(prompt, {.max_tokens = max_tokens}, result.stats);
    result.tokens.assign(tokens.begin(), tokens.end());
    return result;
  }

  models::model_folder& models_;
  espalier::contiguous_kv compacting_;
  espalier::contiguous_kv truncating_;
  espalier::contiguous_kv draft_kv_;
};

//! The methods of DynaTree's tables: Table 1's and the ablation of Table 4 (second paper), the first paper's tree.
inline std::vector<decoding_method> paper_methods() {
  espalier::dynatree_options without_history;
  without_history.history = false;
  return {{"plain", espalier::plain()},
          {"chain K=5", espalier::chain_options{.length = 5}},
          {"fixed D=5 B=2", espalier::fixed_options{.depth = 5, .breadth = 2, .budget = 64}},
          {"+ breadth and depth", without_history},
          {"+ history", espalier::dynatree_options()},
          {"first paper", espalier::dynatree_options::first_paper()}};
}

}  // namespace bench
