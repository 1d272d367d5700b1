// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/model/tokenizer/chat_template.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"

namespace serve {

//! How the prompt of a chat ends.
enum class chat_end {
  reply,      //!< with what stands before the assistant's next answer
  continued,  //!< inside the last message, which the model goes on with
  complete    //!< after the last message
};

//! The values that a chat template is given.
struct chat_input {
  nlohmann::ordered_json messages;     //!< array of objects
  nlohmann::ordered_json tools{};      //!< array of tools in the form of OpenAI's API; null: none
  nlohmann::ordered_json variables{};  //!< object of further variables; null: none
  chat_end end = chat_end::reply;
};

//! True if a template reads this variable.
inline bool reads(const espalier::chat_template&, std::string_view) {
  return false;
}

namespace detail {

inline std::vector<espalier::chat_message> messages_of(const chat_input& input) {
  if (!input.tools.is_null()) espalier::raise<espalier::input_error>("this chat template does not read tools.");
  if (!input.variables.empty()) {
    espalier::raise<espalier::input_error>("this chat template does not read ", input.variables.begin().key(), ".");
  }
  if (input.end != chat_end::reply)
    espalier::raise<espalier::input_error>("with this chat template the assistant's answer must follow.");
  std::vector<espalier::chat_message> messages;
  for (const auto& message : input.messages) {
    const auto role = message.at("role").get<std::string>();
    if (!message.contains("content") || !message["content"].is_string())
      espalier::raise<espalier::input_error>("with this chat template every message has content.");
    messages.push_back({role == "developer" ? "system" : role, message["content"].get<std::string>()});
  }
  return messages;
}

}  // namespace detail

//! The prompt of a chat as text.
//!
//! Errors      espalier::input_error for what the template does not take
inline std::string text_of(const espalier::chat_template& chat, const chat_input& input) {
  std::string text;
  for (const espalier::prompt_piece& piece : chat.prompt(detail::messages_of(input)))
    text += piece.text;
  return text;
}

//! The tokens of the prompt of a chat.
//!
//! Errors      as text_of
inline std::vector<espalier::token_id> tokens_of(const espalier::chat_template& chat,
                                                 const espalier::tokenizer& tokenizer, const chat_input& input) {
  return chat.tokens(tokenizer, detail::messages_of(input));
}

}  // namespace serve
