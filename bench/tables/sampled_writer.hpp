// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/decoder/decoder.hpp"
#include "espalier/decoder/statistics.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/registry.hpp"
#include "model_folder.hpp"
#include "sampled_verifiers.hpp"
#include "static_tree.hpp"

namespace bench {

//! How both models sample.
struct pair_sampling {
  espalier::sampling_options target;
  espalier::sampling_options draft;
};

//! Decodes with a static tree and any of the registry's verifiers; neither model has seen the prompt before.
class sampled_writer {
 public:
  explicit sampled_writer(models::model_folder& models)
      : models_(models), kv_(models.make_cache(models.target)), draft_kv_(models.make_cache(models.draft)) {}

  espalier::statistics write_plainly(const espalier::sampling_options& sampling,
                                     std::span<const espalier::token_id> prompt, int max_tokens, std::uint64_t seed) {
    return run(espalier::no_drafter(), espalier::plain(), espalier::target_only(), sampling, prompt, max_tokens, seed);
  }

  //! Writes max_tokens tokens, past any end of text. A verifier for a single path gets one.
  template <class PartT>
  espalier::statistics write(const PartT& verifier, const static_tree& tree, const pair_sampling& sampling,
                             std::span<const espalier::token_id> prompt, int max_tokens, std::uint64_t seed) {
    espalier::autoregressive drafter(models_.draft, draft_kv_, sampling.draft);
    if constexpr (takes_paths<typename PartT::type>) {
      return run(drafter, espalier::delayed(tree), verifier.make(), sampling.target, prompt, max_tokens, seed);
    } else {
      return run(drafter, espalier::sampled_chain({.length = tree.trunk + tree.length}), verifier.make(),
                 sampling.target, prompt, max_tokens, seed);
    }
  }

  //! Prompt and text of the last call.
  const std::vector<espalier::token_id>& text() const { return text_; }

 private:
  template <class DrafterT, class PolicyT, class VerifierT>
  espalier::statistics run(DrafterT&& drafter, PolicyT policy, VerifierT verifier,
                           const espalier::sampling_options& sampling, std::span<const espalier::token_id> prompt,
                           int max_tokens, std::uint64_t seed) {
    auto decode =
        espalier::make_decoder(drafter, policy, verifier, kv_, models_.target, {.sampling = sampling, .seed = seed});
    espalier::statistics stats;
    decode.generate(prompt, {.max_tokens = max_tokens}, stats);
    text_.assign(decode.current().text().begin(), decode.current().text().end());
    return stats;
  }

  models::model_folder& models_;
  espalier::contiguous_kv kv_;
  espalier::contiguous_kv draft_kv_;
  std::vector<espalier::token_id> text_;
};

}  // namespace bench
