// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/model/tokenizer/chat_template.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"

namespace serve {

using espalier::chat_end;
using espalier::chat_input;

//! True if a template reads this variable.
inline bool reads(const espalier::chat_template& chat, std::string_view variable) {
  return chat.reads(variable);
}

//! The prompt of a chat as text.
//!
//! Errors      espalier::input_error for what the template does not take
inline std::string text_of(const espalier::chat_template& chat, const chat_input& input) {
  std::string text;
  for (const espalier::prompt_piece& piece : chat.prompt(input))
    text += piece.text;
  return text;
}

//! The tokens of the prompt of a chat.
//!
//! Errors      as text_of
inline std::vector<espalier::token_id> tokens_of(const espalier::chat_template& chat,
                                                 const espalier::tokenizer& tokenizer, const chat_input& input) {
  return chat.tokens(tokenizer, input);
}

}  // namespace serve
