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

namespace {

espalier::autoregressive<host_model, espalier::recurrent_kv&> draft_of(const assignment& of,
                                                                       const espalier::sampling_options& sampling) {
  espalier::recurrent_kv& cache = of.models.draft_cache(of.arguments.commit);  // says so if there is no draft model
  return {host_model(of.passes.draft), cache, sampling};
}

}  // namespace

host_drafter assignment::drafter(const espalier::sampling_options& sampling) const {
  if (arguments.drafter == drafter_kind::text) return text_drafter();
  if (models.self && models.self->window > 0) {
    const espalier::llama_backend& draft = *models.draft;
    host_window_kv window(draft.config().n_layers, draft.config().kv_size(), 1, models.window_options(arguments.commit),
                          host_turner(draft));
    return host_drafter(espalier::autoregressive(host_model(passes.draft), std::move(window), sampling));
  }
  if (!models.draft_text) return path_drafter(sampling);
  return host_drafter(espalier::recut(draft_of(*this, sampling), *models.map, *models.draft_text, models.text));
}

host_path_drafter assignment::path_drafter(const espalier::sampling_options& sampling) const {
  if (models.draft_text) {
    throw usage_error(
        "--ahead does not go with a draft whose text is cut again: what it drafts depends on more than the tokens. "
        "--translation tokens goes with it.");
  }
  if (models.map) return host_path_drafter(espalier::translated(draft_of(*this, sampling), *models.map));
  return host_path_drafter(draft_of(*this, sampling));
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
