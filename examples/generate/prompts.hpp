// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "../models/prompts_file.hpp"
#include "arguments.hpp"
#include "chat_prompt.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"

namespace generate {

inline constexpr std::string_view default_question =
    "Question: A box holds 12 red pencils and twice as many blue ones. Mia gives away 9 pencils. How many pencils are "
    "left?\n"
    "Answer:";

//! The prompts that the arguments ask for, as tokens too. Without any, they are the first of each domain in the model
//! folder's prompts.jsonl (just one unless methods are compared), or a question if there is no such file.
//!
//! Errors      usage_error, espalier::input_error
inline std::vector<models::prompt> collect_prompts(const arguments& arguments, const espalier::tokenizer& tokenizer) {
  std::vector<models::prompt> prompts;
  for (const std::string& text : arguments.prompts) {
    if (text.empty()) throw usage_error("--prompt is empty; it needs at least one character.");
    prompts.push_back({.text = text});
  }
  const std::string bundled = arguments.models.model + "/prompts.jsonl";
  if (!arguments.prompts_file.empty()) {
    prompts = models::read_prompts(arguments.prompts_file);
  } else if (prompts.empty() && std::filesystem::is_regular_file(bundled)) {
    for (const models::prompt& p : models::read_prompts(bundled)) {
      const bool known =
          std::any_of(prompts.begin(), prompts.end(), [&](const models::prompt& q) { return q.domain == p.domain; });
      if (!known && (arguments.compare || prompts.empty())) prompts.push_back(p);
    }
  } else if (prompts.empty()) {
    prompts.push_back({.text = std::string(default_question)});
  }
  for (models::prompt& p : prompts) {
    if (p.tokens.empty()) {
      p.tokens = prompt_tokens(arguments, tokenizer, p.text);
    } else {
      p.text = tokenizer.decode(p.tokens);
    }
  }
  return prompts;
}

}  // namespace generate
