// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "assignment.hpp"
#include "costs_of.hpp"
#include "draft_sampling.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/block_diffusion.hpp"
#include "espalier/drafter/factorised.hpp"
#include "espalier/drafter/feature_steps.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/selector/neural_delayed.hpp"
#include "part_with.hpp"
#include "text_verifier.hpp"

namespace generate {

//! A method made from a `part` of a list such as the registry's. It has a decoder over each drafter from which the
//! policy can grow: each list's parts are compiled where the list is, and nowhere else.
template <class PartT>
class method_of final : public method_with<PartT> {
  using typename method_with<PartT>::policy_type;

 public:
  using method_with<PartT>::method_with;

  std::unique_ptr<method> copy() const override { return std::make_unique<method_of>(*this); }

  written_text write(const assignment& work) const override {
    if constexpr (!espalier::drafts<policy_type>) {
      return write_with(espalier::no_drafter(), this->part().make(), work);
    } else {
      if constexpr (method_with<PartT>::from_rows) {
        if (work.arguments.drafter == drafter_kind::block) return write_from_block(work);
        if (is_head(work.arguments.drafter)) return write_from_head(work);
        return write_with(work.drafter(draft_sampling(work.arguments, *this)), policy(work), work);
      }
      return {};  // pairings() refuses other drafters
    }
  }

 private:
  written_text write_from_head(const assignment& work) const {
    return write_with(espalier::feature_steps(work.head(), draft_sampling(work.arguments, *this)), policy(work), work);
  }

  // Policies that take a block directly need no sampler, unless flags set one; a constraint needs rows by node.
  written_text write_from_block(const assignment& work) const {
    espalier::block_diffusion block(work.block());
    if constexpr (method_with<PartT>::template grows_from<decltype(block)>) {
      if (work.arguments.draft_options.empty() && !work.arguments.constrains())
        return write_with(block, this->part().make(), work);
    }
    espalier::factorised drafter(block, draft_sampling(work.arguments, *this));
    return write_with(drafter, this->part().make(), work);
  }

  // The policy, made from its options and, if it needs them, the costs of passes and a selector.
  policy_type policy(const assignment& work) const {
    const PartT& part = this->part();
    const bool has_model = work.arguments.drafter != drafter_kind::text;
    if constexpr (std::is_same_v<policy_type, espalier::neural_delayed<>>) {
      if (!has_model) return part.make();
      auto selector = selector_of(work);
      return selector ? policy_type(part.options, std::move(*selector), costs_of(work)) : part.make();
    } else if constexpr (std::is_constructible_v<policy_type, decltype(part.options), espalier::cost_model>) {
      const espalier::cost_model& costs = costs_of(work);
      return policy_type(part.options, has_model ? costs : costs.without_draft());
    } else {
      return part.make();
    }
  }

  template <class DrafterT>
  written_text write_with(DrafterT&& drafter, policy_type policy, const assignment& work) const {
    auto decode =
        espalier::make_decoder(drafter, std::move(policy), held_verifier<policy_type::sampling>(work.make_verifier()),
                               work.target_cache(), work.target(), work.arguments.target, constraint_of(work));
    return write_by(decode, work);
  }
};

}  // namespace generate
