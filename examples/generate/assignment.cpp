// SPDX-License-Identifier: BSL-1.0
#include "assignment.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "../models/model_set.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/recut.hpp"
#include "espalier/drafter/text_counts.hpp"
#include "espalier/drafter/translated.hpp"

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
  if (arguments.drafter == drafter_kind::text) return text_drafter();
  if (models.self && models.self->window > 0) {
    const espalier::llama_backend& draft = *models.draft;
    host_window_kv window(draft.config().n_layers, draft.config().kv_size(), 1, models.window_options(arguments.commit),
                          host_turner(draft));
    return host_drafter(espalier::autoregressive(host_model(passes.draft), std::move(window), sampling));
  }
  espalier::recurrent_kv& cache = models.draft_cache(arguments.commit);  // says so if there is no draft model
  espalier::autoregressive<host_model, espalier::recurrent_kv&> drafter(host_model(passes.draft), cache, sampling);
  if (models.draft_text)
    return host_drafter(espalier::recut(std::move(drafter), *models.map, *models.draft_text, models.text));
  if (models.map) return host_drafter(espalier::translated(std::move(drafter), *models.map));
  return host_drafter(std::move(drafter));
}

host_drafter assignment::text_drafter() const {
  constexpr std::int32_t most = espalier::option_of(&espalier::text_counts_options::capacity).high();
  return host_drafter(
      espalier::text_counts(models.target.vocab_size(), {.capacity = (std::min)(models.context(), most)}));
}

std::shared_ptr<const chosen_policy> assignment::text_policy() const {
  const std::string& name = arguments.text_method;
  return name.empty() ? nullptr : arguments.parts.methods.find(name)->over_text(*this);
}

espalier::recurrent_kv& assignment::target_cache() const {
  return models.target_cache(arguments.commit);
}

std::unique_ptr<text_verifier> assignment::make_verifier() const {
  return arguments.parts.verifiers.find(verifier)->make();
}

}  // namespace generate
