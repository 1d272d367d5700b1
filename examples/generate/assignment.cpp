// SPDX-License-Identifier: BSL-1.0
#include "assignment.hpp"

#include <algorithm>
#include <utility>

#include "../models/model_set.hpp"
#include "../models/price_table.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/text_counts.hpp"

namespace generate {

priced_models::priced_models(models::model_set& models, const models::price_table* table)
    : target{&models.target},
      draft{models.draft ? &*models.draft : nullptr},
      head{models.head ? &*models.head : nullptr},
      block{models.block ? &*models.block : nullptr} {
  if (table == nullptr) return;
  target.prices = &table->costs.target_pass;
  draft.prices = head.prices = block.prices = &table->costs.draft_pass;
  opening = table->costs.opening;
}

espalier::round_record priced_models::priced(const espalier::round_record& round) {
  espalier::round_record result = round;
  result.seconds = {};
  result.seconds.target_forward = std::exchange(target.seconds, 0.0);
  std::int64_t drafting_passes = 0;
  const auto take = [&](auto& drafting) {
    result.seconds.draft_forward += std::exchange(drafting.seconds, 0.0);
    drafting_passes += std::exchange(drafting.passes, 0);
  };
  take(draft), take(head), take(block);
  if (drafting_passes > 0) result.seconds.grow = opening;
  return result;
}

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
