// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "espalier/cost/cost_model.hpp"
#include "espalier/model/llama/model_identity.hpp"
#include "model_costs.hpp"
#include "model_set.hpp"
#include "priced_arguments.hpp"
#include "report_file.hpp"

namespace bench {

//! The costs of the pair's passes: by a table of prices, if `price` is one; on this machine, from a file or, if none is
//! named, measured now in 20 seconds.
//!
//! Errors      those of models::read_model_costs; input_error for both a table and a file
inline espalier::cost_model pair_costs(models::model_set& models, const std::string& file,
                                       const models::price_table* price) {
  if (price != nullptr) return costs_of(*price, file);
  if (!file.empty()) return models::read_model_costs(models, file);
  // Longer than a decoder's warm-up, since other programs of the machine change within seconds and a benchmark takes
  // minutes.
  espalier::cost_model costs = models::measure_model_costs(
      models, {.most_rows = 64, .seconds = 20},
      [](double share, std::string_view what) { progress(fmt::format("measuring: {:.0f} %, {}", 100 * share, what)); });
  progress("");
  costs.target = espalier::model_identity(models.paths.model);
  costs.draft = models::draft_identity(models);
  return costs;
}

}  // namespace bench
