// SPDX-License-Identifier: BSL-1.0
#include "model_set.hpp"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "espalier/model/files/head_tokens.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "model_tokenizer.hpp"

namespace models {

model_set model_set::load(const model_paths& given, const espalier::llama_options& options,
                          const drafting_choice& choice) {
  model_paths paths = paths_for(choice.drafter, given.resolved());
  const bool is_self = choice.drafter == drafter_kind::self;
  for (const auto& [flag, is_given] : {std::pair("map", !given.map.empty()),
                                       {"translation", given.translation != translation_kind::automatic},
                                       {"head-tokens", !given.head_tokens.empty()}}) {
    if (is_given && paths.draft.empty())
      espalier::raise<espalier::model_error>("--", flag, " is for a smaller model that drafts: there is none here.");
  }
  if (is_self) paths.draft = paths.model;
  espalier::llama_options target_options = options, draft_options = options;
  if (choice.ahead) draft_options.threads = 1, draft_options.apart = true;
  const espalier::model_config config = espalier::model_files::open(paths.model).config;
  if (is_self && choice.self.window > 0 && config.is_hybrid()) {
    espalier::raise<espalier::model_error>("--self.window does not go with ", paths.model,
                                           ": a window cannot hold the states of its recurrent layers.");
  }
  // The hidden states that selectors read.
  target_options.hidden_layers.push_back(config.n_layers - 1);
  model_set models{paths, model_tokenizer(given.model, paths),
                   espalier::llama_backend::load(paths.model, target_options)};
  if (is_self) {
    const self_draft_options& self = choice.self;
    models.self = self;
    draft_options.layers = self.layers;
    const bool needs_bytes = self.arithmetic == espalier::matrix_arithmetic::integer &&
                             options.arithmetic != espalier::matrix_arithmetic::integer;
    if (needs_bytes) {
      draft_options.arithmetic = self.arithmetic;
      draft_options.weights = espalier::weight_storage::fastest;
    }
    draft_options.hidden_layers.push_back((self.layers > 0 ? self.layers : config.n_layers) - 1);
    if (needs_bytes) {
      models.draft = espalier::llama_backend::load(paths.model, draft_options);
    } else {
      models.draft.emplace(config, models.target.weights(), draft_options);
    }
  } else if (!paths.draft.empty()) {
    const espalier::model_config draft_config = espalier::model_files::open(paths.draft).config;
    draft_options.hidden_layers.push_back(draft_config.n_layers - 1);
    models.map = map_to_draft(models.text, given.model, paths);
    if (models.map && cuts_text(*models.map, paths)) models.draft_text = detail::tokenizer_of(paths.draft);
    if (!models.map) draft_options.vocab_size = config.vocab_size;
    if (!paths.head_tokens.empty()) {
      const int vocab = models.map ? draft_config.vocab_size : (std::min)(draft_config.vocab_size, config.vocab_size);
      draft_options.head_tokens = espalier::read_head_tokens(paths.head_tokens, vocab);
    }
    // A model that drafts for itself is loaded only once, unless it drafts some tokens alone.
    const bool is_target = std::filesystem::equivalent(paths.model, paths.draft) && paths.head_tokens.empty();
    if (is_target) {
      models.draft.emplace(models.target.config(), models.target.weights(), draft_options);
    } else {
      models.draft = espalier::llama_backend::load(paths.draft, draft_options);
    }
  }
  if (!paths.head.empty()) models.head = espalier::draft_head_model::load(paths.head, models.target);
  if (!paths.block.empty()) models.block = block_model::load(paths.block, models.target);
  return models;
}

}  // namespace models
