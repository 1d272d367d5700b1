// SPDX-License-Identifier: BSL-1.0
#include "priced_models.hpp"

#include <cstdint>
#include <utility>

#include "../models/model_set.hpp"
#include "../models/price_table.hpp"

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
  if (target.prices == nullptr) return round;
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

}  // namespace generate
