// SPDX-License-Identifier: BSL-1.0
#include "draft_sampling.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "policy_of.hpp"
#include "write_with.hpp"

namespace generate {

written_text write_from_model(const assignment& work) {
  written_text result;
  with_policy(work.arguments, work.method, [&]<class PartT>(const PartT& part) {
    if constexpr (espalier::drafts<typename PartT::type>) {
      espalier::recurrent_kv& kv = work.models.draft_cache(work.arguments.commit);
      espalier::autoregressive drafter(work.models.draft_model(), kv, draft_sampling(work.arguments, work.method));
      result = write_with(drafter, policy_of(part, work), work);
    } else {
      result = write_with(espalier::no_drafter(), part.make(), work);
    }
  });
  return result;
}

}  // namespace generate
