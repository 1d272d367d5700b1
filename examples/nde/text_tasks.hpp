// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../models/model_set.hpp"
#include "../models/prompts_file.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/sampling_options.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/model/tokenizer/chat_template.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"
#include "espalier/sampling/sampler.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/traversal.hpp"
#include "sampling_setting.hpp"

namespace nde {

//! A prompt of a domain, and how both models sample after it.
struct text_task {
  std::vector<espalier::token_id> prompt;
  std::string domain;
  espalier::sampling_options sampling;
};

//! Returns a prompt's tokens. For a model that was trained to chat, a text is a message of the user.
//!
//! Errors      model_error for a chat template that cannot be run
inline std::vector<espalier::token_id> tokens_of(const models::prompt& prompt, const espalier::tokenizer& tokenizer) {
  if (!prompt.tokens.empty()) return prompt.tokens;
  if (tokenizer.chat_template_text().empty()) return tokenizer.encode_prompt(prompt.text);
  auto messages = nlohmann::ordered_json::array({{{"role", "user"}, {"content", prompt.text}}});
  return espalier::chat_template::of(tokenizer).tokens(tokenizer, {.messages = std::move(messages)});
}

//! Returns the prompts of a file with their samplings: prompts of a domain that name no temperature take the samplings
//! in turn. `count`: only so many prompts; 0: all. `room`: tokens that must fit the models' context after each prompt.
//!
//! Errors      input_error for a file that cannot be read, a text that is no sampling, a temperature out of range, a
//!             prompt that does not fit the context, or a token that is not in the vocabulary; as tokens_of
inline std::vector<text_task> text_tasks(const models::model_set& models, const std::string& path,
                                         const std::vector<std::string>& samplings, int count, int room) {
  std::vector<espalier::sampling_options> each;
  for (const std::string& text : samplings)
    each.push_back(parse_sampling(text));
  std::map<std::string, std::size_t> of_domain;
  std::vector<text_task> tasks;
  for (const models::prompt& prompt : models::read_prompts(path)) {
    if (count > 0 && tasks.size() == static_cast<std::size_t>(count)) break;
    auto tokens = tokens_of(prompt, models.text);
    if (static_cast<int>(tokens.size()) + room > models.drafted_context()) {
      espalier::raise<espalier::input_error>(path, ", line ", prompt.line, ": ", tokens.size(), " tokens and ", room,
                                             " more do not fit the models' context of ", models.drafted_context(), ".");
    }
    constexpr auto range = espalier::option_of(&espalier::sampling_options::temperature);
    if (prompt.temperature && !(*prompt.temperature >= range.low && *prompt.temperature <= range.high())) {
      espalier::raise<espalier::input_error>(path, ", line ", prompt.line, ": the temperature is ", *prompt.temperature,
                                             ", but must lie between ", range.low, " and ", range.high(), ".");
    }
    for (const espalier::token_id token : tokens) {
      if (token >= models.target.vocab_size()) {
        espalier::raise<espalier::input_error>(path, ", line ", prompt.line, ": token ", token,
                                               " is not in the models' vocabulary of ", models.target.vocab_size(),
                                               ".");
      }
    }
    const std::string domain = prompt.domain.empty() ? "all" : prompt.domain;
    const espalier::sampling_options in_turn = each[of_domain[domain]++ % each.size()];
    tasks.push_back({std::move(tokens), domain,
                     prompt.temperature ? espalier::sampling_options{.temperature = *prompt.temperature} : in_turn});
  }
  return tasks;
}

//! Returns the prompt and `n` tokens after it, written as the target alone would, past any end of text.
inline std::vector<espalier::token_id> text_after(models::model_set& models, espalier::recurrent_kv& target_kv,
                                                  espalier::recurrent_kv& draft_kv,
                                                  std::span<const espalier::token_id> prompt, int n,
                                                  const espalier::sampling_options& sampling, std::uint64_t seed) {
  std::vector<espalier::token_id> text(prompt.begin(), prompt.end());
  auto decode = espalier::make_decoder(espalier::autoregressive(models.draft_model(), draft_kv, sampling),
                                       espalier::sampled_chain({.length = 5}), espalier::traversal(), target_kv,
                                       models.target, {.text = {.sampling = sampling, .seed = seed}});
  const auto written = decode.generate(prompt, {.max_tokens = n});
  text.insert(text.end(), written.begin(), written.end());
  return text;
}

}  // namespace nde
