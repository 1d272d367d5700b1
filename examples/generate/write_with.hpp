// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <type_traits>
#include <utility>

#include "assignment.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/decoder/ahead.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/block_diffusion.hpp"
#include "espalier/drafter/factorised.hpp"
#include "espalier/drafter/feature_steps.hpp"
#include "espalier/drafter/joint.hpp"
#include "espalier/tree_policy/any_policy.hpp"
#include "espalier/tree_policy/cascade.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "text_verifier.hpp"

namespace generate {

//! The TreePolicy that a decoder holds for the trees of one regime: any whose trees are of this regime, and which grows
//! from a drafter's rows by node or from a block.
template <espalier::regime Sampling>
using held_policy = espalier::any_policy<Sampling, espalier::takes<espalier::node_rows<float>, espalier::philox_chance>,
                                         espalier::takes<espalier::block_rows<float>, espalier::philox_chance>>;

using host_block_drafter = espalier::block_diffusion<host_block>;

//! A policy of chosen trees, which are merged with those of another policy.
struct chosen_policy {
  held_policy<espalier::regime::deterministic> policy;
};

//! Writes a text with a policy's trees, over the drafter that the arguments name. `takes_block` is true if the policy
//! can take a block as it is. The library's regimes are compiled once, in write_with.cpp.
template <espalier::regime Sampling>
written_text write_with(const held_policy<Sampling>& policy, bool takes_block,
                        const espalier::sampling_options& draft_sampling, const assignment& work) {
  const auto write_over = [&](auto&& drafter, auto grown) {
    auto decode =
        espalier::make_decoder(drafter, std::move(grown), held_verifier<Sampling>(work.make_verifier()),
                               work.target_cache(), work.target(), work.arguments.target, constraint_of(work));
    return write_by(decode, work);
  };
  const auto over = [&]<class DrafterT>(DrafterT drafter) {
    if constexpr (Sampling == espalier::regime::deterministic) {
      if constexpr (!std::is_same_v<DrafterT, host_block_drafter>) {
        if (const auto text_policy = work.text_policy()) {
          return write_over(espalier::joint(std::move(drafter), work.text_drafter()),
                            espalier::cascade(policy, text_policy->policy));
        }
      }
    }
    return write_over(drafter, policy);
  };
  if (is_head(work.arguments.drafter))
    return over(host_feature_drafter(espalier::feature_steps(work.head(), draft_sampling)));
  if (work.arguments.ahead) return write_over(espalier::ahead(work.path_drafter(draft_sampling)), policy);
  if (work.arguments.drafter != drafter_kind::block) return over(work.drafter(draft_sampling));
  host_block_drafter block(work.block());
  // Policies that take a block directly need no sampler, unless flags set one; a constraint, and a block whose rows
  // depend on the path, need rows by node. So does a tree that is merged with another.
  if (takes_block && !block.corrects() && work.arguments.draft_options.empty() && !work.arguments.constrains() &&
      work.arguments.text_method.empty())
    return over(std::move(block));
  return over(host_feature_drafter(espalier::factorised(std::move(block), draft_sampling)));
}

extern template written_text write_with(const held_policy<espalier::regime::deterministic>&, bool,
                                        const espalier::sampling_options&, const assignment&);
extern template written_text write_with(const held_policy<espalier::regime::iid>&, bool,
                                        const espalier::sampling_options&, const assignment&);
extern template written_text write_with(const held_policy<espalier::regime::without_replacement>&, bool,
                                        const espalier::sampling_options&, const assignment&);
extern template written_text write_with(const held_policy<espalier::sampled_chain::sampling>&, bool,
                                        const espalier::sampling_options&, const assignment&);

}  // namespace generate
