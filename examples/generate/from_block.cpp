// SPDX-License-Identifier: BSL-1.0
#include "draft_sampling.hpp"
#include "espalier/drafter/block_diffusion.hpp"
#include "espalier/drafter/factorised.hpp"
#include "espalier/model/llama/block_draft_model.hpp"
#include "write_with.hpp"

namespace generate {

written_text write_from_block(const assignment& work) {
  written_text result;
  espalier::block_diffusion block(*work.models.block);
  with_policy(work.arguments, work.method, [&]<class PartT>(const PartT& part) {
    // Policies that take a block directly need no sampler, unless flags set one; a constraint needs rows by node.
    if constexpr (espalier::TreePolicy<typename PartT::type, decltype(block), espalier::philox_chance>) {
      if (work.arguments.draft_options.empty() && !work.arguments.constrains()) {
        result = write_with(block, part.make(), work);
        return;
      }
    }
    espalier::factorised drafter(block, draft_sampling(work.arguments, work.method));
    result = write_with(drafter, part.make(), work);
  });
  return result;
}

}  // namespace generate
