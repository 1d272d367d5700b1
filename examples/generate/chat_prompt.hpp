// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "espalier/core/token.hpp"
#include "espalier/model/tokenizer/chat_template.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"

namespace generate {

//! A message of a chat.
inline nlohmann::ordered_json chat_message(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

//! The messages before the user's first one.
inline nlohmann::ordered_json opening(const arguments& arguments) {
  auto messages = nlohmann::ordered_json::array();
  if (!arguments.system.empty()) messages.push_back(chat_message("system", arguments.system));
  return messages;
}

//! The chat template of a model.
//!
//! Errors      usage_error for one that cannot be run
inline espalier::chat_template chat_of(const espalier::tokenizer& tokenizer) {
  try {
    return espalier::chat_template::of(tokenizer);
  } catch (const espalier::model_error& error) {
    throw usage_error(error.what() + std::string(" --raw gives a prompt as it is, without it."));
  }
}

//! The tokens of a prompt. For a model that was trained to chat, the prompt is a message of the user; with --raw, and
//! for other models, it is the beginning of a text.
//!
//! Errors      usage_error for a system message if the model does not chat, or for a chat template that cannot be run;
//!             espalier::input_error
inline std::vector<espalier::token_id> prompt_tokens(const arguments& arguments, const espalier::tokenizer& tokenizer,
                                                     const std::string& text) {
  if (tokenizer.chat_template_text().empty() && !arguments.system.empty())
    throw usage_error("--system needs a model that was trained to chat: " + tokenizer.where() +
                      " has no chat template.");
  if (arguments.raw || tokenizer.chat_template_text().empty()) return tokenizer.encode_prompt(text);
  nlohmann::ordered_json messages = opening(arguments);
  messages.push_back(chat_message("user", text));
  return chat_of(tokenizer).tokens(tokenizer, {.messages = messages});
}

}  // namespace generate
