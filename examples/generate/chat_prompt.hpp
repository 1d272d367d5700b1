// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>
#include <vector>

#include "arguments.hpp"
#include "espalier/core/token.hpp"
#include "espalier/model/tokenizer/chat_template.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"

namespace generate {

//! The messages before the user's first one.
inline std::vector<espalier::chat_message> opening(const arguments& arguments) {
  if (arguments.system.empty()) return {};
  return {{"system", arguments.system}};
}

//! The tokens of a prompt. For a model that was trained to chat, the prompt is a message of the user; with --raw, and
//! for other models, it is the beginning of a text.
//!
//! Errors      usage_error for a system message if the model does not chat; espalier::model_error for a chat template
//!             of an unknown form; espalier::input_error
inline std::vector<espalier::token_id> prompt_tokens(const arguments& arguments, const espalier::tokenizer& tokenizer,
                                                     const std::string& text) {
  if (tokenizer.chat_template_text().empty() && !arguments.system.empty())
    throw usage_error("--system needs a model that was trained to chat: " + tokenizer.where() +
                      " has no chat template.");
  if (arguments.raw || tokenizer.chat_template_text().empty()) return tokenizer.encode_prompt(text);
  std::vector<espalier::chat_message> messages = opening(arguments);
  messages.push_back({"user", text});
  return espalier::chat_template::of(tokenizer).tokens(tokenizer, messages);
}

}  // namespace generate
