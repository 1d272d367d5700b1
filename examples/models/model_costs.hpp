// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/cost/hardware_name.hpp"
#include "espalier/cost/measure_costs.hpp"
#include "espalier/decoder/stopwatch.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/forward/prefill.hpp"
#include "espalier/model/files/cost_file.hpp"
#include "espalier/model/llama/model_identity.hpp"
#include "espalier/sampling/sampler.hpp"
#include "model_set.hpp"

namespace models {

namespace detail {

// Seconds that a model takes to read a token of a text, about; the cache is empty before and after.
inline double reading_seconds(espalier::llama_backend& model, espalier::contiguous_kv& kv) {
  const std::vector<espalier::token_id> text(
      static_cast<std::size_t>((std::min)(espalier::prefill::default_chunk, kv.capacity())));
  espalier::stopwatch watch;
  espalier::prefill().run(model, kv, 0, text, 0, [](std::int32_t, std::int32_t) {});
  const double seconds = watch.lap() / static_cast<double>(text.size());
  kv.truncate(0, 0);
  return seconds;
}

}  // namespace detail

//! What passes of the models cost on this machine, measured now: of the target alone where there is no draft. Unless
//! options.contexts says after how many tokens, about half of the time goes by reading at most: twice by the draft,
//! which reads a long text anew in each turn. The costs do not name the models. progress as measure_costs'.
//!
//! Errors      measure_costs'
template <class ProgressT>
espalier::cost_model measure_model_costs(model_set& models, espalier::measure_options options,
                                         const ProgressT& progress,
                                         const espalier::sampling_options& draft_sampling = {.temperature = 1.0F}) {
  espalier::contiguous_kv target_kv = models.make_cache(models.target);
  std::optional<espalier::contiguous_kv> draft_kv;
  if (models.draft) draft_kv = models.make_cache(*models.draft);
  options.hardware = espalier::hardware_name(models.target.n_threads());
  if (options.contexts.empty()) {
    progress(0.0, std::string_view("how fast the models read"));
    double token = detail::reading_seconds(models.target, target_kv);
    if (models.draft) token += 2 * detail::reading_seconds(*models.draft, *draft_kv);
    const double reach = (std::max)(32.0, options.seconds / 2 / token);
    const std::int32_t longest = models.context() - (std::min)(options.most_rows, models.context() / 2 - 1) - 1;
    if (reach < (std::min)(4096, longest)) options.contexts = {16, static_cast<std::int32_t>(reach)};
  }
  if (!models.draft) return espalier::measure_costs(models.target, target_kv, options, progress);
  espalier::autoregressive drafter(*models.draft, *draft_kv, draft_sampling);
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
