// SPDX-License-Identifier: BSL-1.0
#include "assignment.hpp"

#include <algorithm>

#include "../models/model_set.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/text_counts.hpp"

namespace generate {

host_model assignment::target() const {
  return host_model(passes.target);
}

host_head assignment::head() const {
  return host_head(passes.head);
}

host_block assignment::block() const {
  return host_block(passes.block);
}

host_drafter assignment::drafter(const espalier::sampling_options& sampling) const {
  if (arguments.drafter == drafter_kind::text) {
    constexpr std::int32_t most = espalier::option_of(&espalier::text_counts_options::capacity).high();
    return host_drafter(
        espalier::text_counts(models.target.vocab_size(), {.capacity = (std::min)(models.context(), most)}));
  }
  (void)models.draft_model();  // says so if there is none
  return host_drafter(
      espalier::autoregressive(host_model(passes.draft), models.draft_cache(arguments.commit), sampling));
}

espalier::recurrent_kv& assignment::target_cache() const {
  return models.target_cache(arguments.commit);
}

std::unique_ptr<text_verifier> assignment::make_verifier() const {
  return arguments.parts.verifiers.find(verifier)->make();
}

}  // namespace generate
