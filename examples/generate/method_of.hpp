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
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/selector/neural_delayed.hpp"
#include "part_with.hpp"
#include "text_verifier.hpp"
#include "write_with.hpp"

namespace generate {

//! A method made from a `part` of a list such as the registry's. Its policy is compiled where the list is; the decoders
//! are those of write_with(), which all methods share.
template <class PartT>
class method_of final : public method_with<PartT> {
  using typename method_with<PartT>::policy_type;

 public:
  using method_with<PartT>::method_with;

  std::unique_ptr<method> copy() const override { return std::make_unique<method_of>(*this); }

  written_text write(const assignment& work) const override {
    if constexpr (!espalier::drafts<policy_type>) {
      auto decode = espalier::make_decoder(
          espalier::no_drafter(), this->part().make(), held_verifier<policy_type::sampling>(work.make_verifier()),
          work.target_cache(), work.target(), work.arguments.target, constraint_of(work));
      return write_by(decode, work);
    } else if constexpr (method_with<PartT>::from_rows) {
      constexpr bool takes_block = method_with<PartT>::template grows_from<espalier::block_diffusion<host_block>>;
      return write_with(held_policy<policy_type::sampling>(policy(work, work.arguments.drafter)), takes_block,
                        draft_sampling(work.arguments, *this), work);
    } else {
      return {};  // pairings() refuses other drafters
    }
  }

  std::shared_ptr<const chosen_policy> over_text(const assignment& work) const override {
    if constexpr (policy_type::sampling == espalier::regime::deterministic && method_with<PartT>::from_rows &&
                  espalier::drafts<policy_type>) {
      return std::make_shared<const chosen_policy>(
          chosen_policy{held_policy<espalier::regime::deterministic>(policy(work, drafter_kind::text))});
    } else {
      return nullptr;  // parse() refuses it
    }
  }

 private:
  // Returns the policy over a kind of drafter, made from its options and, if it needs them, the costs of passes and a
  // selector. Over a block draft, whose passes are not measured, it is made from its options alone.
  policy_type policy(const assignment& work, drafter_kind drafter) const {
    const PartT& part = this->part();
    if (drafter == drafter_kind::block) return part.make();
    const bool has_model = drafter != drafter_kind::text;
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
};

}  // namespace generate
