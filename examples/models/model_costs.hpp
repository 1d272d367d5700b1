// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/core/util/stopwatch.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/cost/hardware_name.hpp"
#include "espalier/cost/measure_costs.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/block_diffusion.hpp"
#include "espalier/drafter/factorised.hpp"
#include "espalier/drafter/feature_steps.hpp"
#include "espalier/drafter/translated.hpp"
#include "espalier/forward/prefill.hpp"
#include "espalier/kv_store/recurrent.hpp"
#include "espalier/kv_store/sink_window.hpp"
#include "espalier/model/files/cost_file.hpp"
#include "espalier/model/llama/key_turner.hpp"
#include "espalier/model/llama/model_identity.hpp"
#include "espalier/sampling/sampler.hpp"
#include "model_set.hpp"

namespace models {

namespace detail {

// Fills a cache with rows of no text: the numbers in them do not change the cost of passes after them.
inline void fill(espalier::recurrent_kv& kv, std::int32_t n) {
  const espalier::recurrent_shape shape = kv.shape();
  std::vector<std::int32_t> rows;
  for (std::int32_t left = n; left > 0; left -= static_cast<std::int32_t>(rows.size())) {
    rows.resize(static_cast<std::size_t>((std::min)(left, kv.most_rows())));
    std::iota(rows.begin(), rows.end(), 0);
    const std::int32_t before = kv.size(0), first = kv.append(0, static_cast<std::int32_t>(rows.size()));
    for (const std::int32_t i : rows) {
      for (int layer = 0; layer < kv.n_layers(); ++layer) {
        std::fill_n(kv.key(layer, 0, first + i), kv.row_size(), 0.0F);
        std::fill_n(kv.value(layer, 0, first + i), kv.row_size(), 0.0F);
      }
      for (int layer = 0; layer < shape.layers; ++layer)
        std::fill_n(kv.kept_row(layer, 0, first + i), shape.row_size, 0.0F);
    }
    kv.commit(0, rows);
    if (shape.layers == 0) continue;
    for (int layer = 0; layer < shape.layers; ++layer)
      std::fill_n(kv.spare_state(layer, 0, before), shape.state_size, 0.0F);
    kv.hold_state(0, before, kv.size(0));
  }
}

// Approximate seconds that a model takes to read one token of a text; the cache is empty before and after.
inline double reading_seconds(espalier::llama_backend& model, espalier::recurrent_kv& kv) {
  const std::vector<espalier::token_id> text(
      static_cast<std::size_t>((std::min)(espalier::prefill::default_chunk, kv.capacity())));
  espalier::stopwatch watch;
  espalier::prefill().run(model, kv, 0, text, 0, [](std::int32_t, std::int32_t) {});
  const double seconds = watch.lap() / static_cast<double>(text.size());
  kv.truncate(0, 0);
  return seconds;
}

// Returns the map with which the passes of a draft with another tokenizer are measured; none if it has the target's. A
// map that shares no token is given one, since `translated` needs one and passes cost the same whatever is shared.
inline std::optional<espalier::vocabulary_map> map_for_costs(const model_set& models) {
  std::optional<espalier::vocabulary_map> map = models.map;
  if (map && map->shared().empty()) map->share(0, 0);
  return map;
}

}  // namespace detail

//! The costs of the models' passes on this machine, measured now; of the target alone if there is no draft. If
//! options.contexts is empty, passes are measured after few tokens and after half of those that the models take, at
//! most 1536, and not more than a draft reads in half of the time: the target's cache is filled, but the draft must
//! read. The costs name the models as the options do. `progress` is that of measure_costs.
//!
//! Errors      those of measure_costs
template <class ProgressT>
espalier::cost_model measure_model_costs(model_set& models, espalier::measure_options options,
                                         const ProgressT& progress,
                                         const espalier::sampling_options& draft_sampling = {.temperature = 1.0F}) {
  espalier::recurrent_kv target_kv = models.make_cache(models.target);
  options.hardware = espalier::hardware_name(models.target.n_threads());
  std::optional<espalier::recurrent_kv> draft_kv;
  std::int32_t half = (std::min)(models.drafted_context() / 2, 1536);
  if (models.draft) {
    draft_kv = models.make_cache(*models.draft);
    // in each of the two turns
    const double reach = options.seconds / 4 / detail::reading_seconds(*models.draft, *draft_kv);
    if (reach < half) half = (std::max)(half / 16, static_cast<std::int32_t>(reach));
  }
  if (options.contexts.empty()) options.contexts = {(std::min)(16, half), half};
  // Filled, since reading that many tokens would take a large target longer than the whole measurement.
  const std::int32_t longest = *std::max_element(options.contexts.begin(), options.contexts.end());
  detail::fill(target_kv, std::clamp(longest, 0, models.context()));
  if (models.head) {
    espalier::feature_steps drafter(*models.head, draft_sampling);
    return espalier::measure_costs(drafter, models.target, target_kv, options, progress);
  }
  if (!models.draft) {
    if (!models.block) return espalier::measure_costs(models.target, target_kv, options, progress);
    espalier::factorised drafter(espalier::block_diffusion(*models.block), draft_sampling);
    return espalier::measure_costs(drafter, models.target, target_kv, options, progress);
  }
  if (models.self && models.self->window > 0) {
    const espalier::model_config& config = models.draft->config();
    espalier::sink_window_kv window(config.n_layers, config.kv_size(), 1, models.window_options(),
                                    espalier::key_turner(config, models.draft->max_positions()));
    espalier::autoregressive drafter(*models.draft, window, draft_sampling);
    return espalier::measure_costs(drafter, models.target, target_kv, options, progress);
  }
  espalier::autoregressive drafter(*models.draft, *draft_kv, draft_sampling);
  const std::optional<espalier::vocabulary_map> map = detail::map_for_costs(models);
  if (!map) return espalier::measure_costs(drafter, models.target, target_kv, options, progress);
  espalier::translated translating(drafter, *map);
  return espalier::measure_costs(translating, models.target, target_kv, options, progress);
}

//! Returns the model_identity of what drafts, with the number of the tokens, though not which they are, if a smaller
//! model drafts some alone; empty if no model drafts.
inline std::string draft_identity(const model_set& models) {
  const model_paths& paths = models.paths;
  const std::string& draft = paths.by_level().empty() ? paths.block : paths.by_level();
  if (draft.empty()) return {};
  const std::size_t n = models.draft ? models.draft->tokens().size() : 0;
  return espalier::model_identity(draft) + (n > 0 ? ", " + std::to_string(n) + " drafted" : "");
}

//! The costs in a file of save_costs; those of the target's passes alone if no model drafts. A sentence on stderr says
//! if they are of other hardware.
//!
//! Errors      those of load_costs and mismatch
inline espalier::cost_model read_model_costs(const model_set& models, const std::string& file) {
  espalier::cost_model costs = espalier::load_costs(file);
  const std::string draft = draft_identity(models);
  if (draft.empty()) costs = costs.without_draft();
  const std::string warning = espalier::mismatch(costs, espalier::hardware_name(models.target.n_threads()),
                                                 espalier::model_identity(models.paths.model), draft);
  if (!warning.empty()) std::cerr << file << ": " << warning << '\n';
  return costs;
}

}  // namespace models
