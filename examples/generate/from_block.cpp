// SPDX-License-Identifier: BSL-1.0
#include "draft_sampling.hpp"
#include "espalier/backend/llama/block_draft_model.hpp"
#include "espalier/drafter/block_diffusion.hpp"
#include "espalier/drafter/factorised.hpp"
#include "write_with.hpp"

namespace generate {

written_text write_from_block(const assignment& work) {
  written_text result;
  espalier::block_diffusion block(*work.models.block);
  with_parts(work.arguments, work.method, work.verifier,
             [&]<class PolicyT>(const PolicyT& policy, const auto& verifier) {
               // Policies that take a block as it is need no sampler, unless flags set one.
               constexpr bool takes_block =
                   espalier::TreePolicy<typename PolicyT::type, decltype(block), espalier::philox_chance>;
               if constexpr (takes_block) {
                 if (work.arguments.draft_options.empty()) {
                   result = write_with(block, policy.make(), verifier.make(), work);
                   return;
                 }
               }
               espalier::factorised drafter(block, draft_sampling(work.arguments, work.method));
               result = write_with(drafter, policy.make(), verifier.make(), work);
             });
  return result;
}

}  // namespace generate
