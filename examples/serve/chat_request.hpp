// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/model/tokenizer/chat_template.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"
#include "fields.hpp"
#include "tool_calls.hpp"

namespace serve {

//! The prompt of a chat.
struct chat_prompt {
  std::vector<espalier::token_id> tokens;
  std::optional<tool_use> tools{};  //!< functions that the answer may call, if any
};

//! Reads the messages and tools of a chat into a prompt; `text` is the request's body. `calls` is the form in which the
//! template writes calls of functions, if it is known.
//!
//! Errors      api_error for fields that are wrong, and for what the template does not take
chat_prompt read_chat(const reading::fields& body, std::string_view text, const espalier::chat_template& chat,
                      const espalier::tokenizer& tokenizer, const std::optional<call_form>& calls);

}  // namespace serve
