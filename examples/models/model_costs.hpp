// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <iostream>
#include <string>

#include "espalier/cost/cost_model.hpp"
#include "espalier/cost/hardware_name.hpp"
#include "espalier/cost/measure_costs.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/model/files/cost_file.hpp"
#include "espalier/model/llama/model_identity.hpp"
#include "espalier/sampling/sampler.hpp"
#include "model_set.hpp"

namespace models {

//! What passes of the models cost on this machine, measured now: of the target alone where there is no draft. progress
//! as measure_costs'.
//!
//! Errors      measure_costs'
template <class ProgressT>
espalier::cost_model measure_model_costs(model_set& models, espalier::measure_options options,
                                         const ProgressT& progress,
                                         const espalier::sampling_options& draft_sampling = {.temperature = 1.0F}) {
  espalier::contiguous_kv target_kv = models.make_cache(models.target);
  options.target = espalier::model_identity(models.paths.model);
  options.hardware = espalier::hardware_name(models.target.n_threads());
  if (!models.draft) return espalier::measure_costs(models.target, target_kv, options, progress);
  espalier::contiguous_kv draft_kv = models.make_cache(*models.draft);
  espalier::autoregressive drafter(*models.draft, draft_kv, draft_sampling);
  options.draft = espalier::model_identity(models.paths.draft);
  return espalier::measure_costs(drafter, models.target, target_kv, options, progress);
}

//! The same from a file of save_costs. A sentence on stderr tells where it is of other hardware.
//!
//! Errors      load_costs' and mismatch's
inline espalier::cost_model read_model_costs(const model_set& models, const std::string& file) {
  espalier::cost_model costs = espalier::load_costs(file);
  const std::string warning = espalier::mismatch(
      costs, espalier::hardware_name(models.target.n_threads()), espalier::model_identity(models.paths.model),
      models.draft ? espalier::model_identity(models.paths.draft) : std::string());
  if (!warning.empty()) std::cerr << file << ": " << warning << '\n';
  return costs;
}

}  // namespace models
