// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/decoder/statistics.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/registry.hpp"
#include "model_set.hpp"
#include "sampled_verifiers.hpp"
#include "static_tree.hpp"
#include "text_writer.hpp"

namespace bench {

//! The sampling of both models.
struct pair_sampling {
  espalier::sampling_options target;
  espalier::sampling_options draft;
};

//! Decodes with a static tree and any of the registry's verifiers; neither model has seen the prompt before.
class sampled_writer {
 public:
  explicit sampled_writer(models::model_set& models, const models::price_table* price = nullptr)
      : writer_(models, price) {}

  espalier::statistics write_plainly(const espalier::sampling_options& sampling,
                                     std::span<const espalier::token_id> prompt, int max_tokens, std::uint64_t seed) {
    return run(espalier::no_drafter(), espalier::plain(), espalier::target_only(), sampling, prompt, max_tokens, seed);
  }

  //! Writes max_tokens tokens, also past an end of text. A verifier for a single path gets one.
  template <class PartT>
  espalier::statistics write(const PartT& verifier, const static_tree& tree, const pair_sampling& sampling,
                             std::span<const espalier::token_id> prompt, int max_tokens, std::uint64_t seed) {
    auto drafter = writer_.draft(sampling.draft);
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
    const written_text written =
        writer_.write(drafter, policy, verifier, prompt, {max_tokens, {.text = {.sampling = sampling, .seed = seed}}});
    text_.assign(prompt.begin(), prompt.end());
    text_.insert(text_.end(), written.tokens.begin(), written.tokens.end());
    return written.stats;
  }

  text_writer writer_;
  std::vector<espalier::token_id> text_;
};

}  // namespace bench
