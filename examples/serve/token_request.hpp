// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "api_request.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"

namespace serve {

//! The reply to POST /tokenize: the tokens of a text or a chat, as a request for text reads them, in vLLM's form for
//! `prompt` and `messages`, in llama.cpp's for `content`.
//!
//! Errors      api_error, as read_request
nlohmann::ordered_json tokenize(std::string_view body, const request_rules& rules,
                                const espalier::tokenizer& tokenizer);

//! The reply to POST /detokenize: the text of tokens, as `prompt` (vLLM's name) and `content` (llama.cpp's).
//!
//! Errors      api_error, as read_request
nlohmann::ordered_json detokenize(std::string_view body, const request_rules& rules,
                                  const espalier::tokenizer& tokenizer);

}  // namespace serve
