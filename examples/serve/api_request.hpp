// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "api_error.hpp"
#include "espalier/constraint/vocabulary_trie.hpp"
#include "espalier/model/tokenizer/chat_template.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"
#include "text_request.hpp"

namespace serve {

//! Which of the two ways to ask for text.
enum class endpoint { completions, chat };

//! What requests are read against.
struct request_rules {
  std::string model;                                      //!< its name
  std::int32_t context = 0;                               //!< tokens of prompt and text together
  std::int32_t vocab_size = 0;                            //!< token ids are below
  std::int32_t most_texts = 1;                            //!< of one request
  std::optional<espalier::vocabulary_trie> vocabulary{};  //!< of the tokenizer, where texts may have to be JSON
  espalier::chat_template chat = espalier::chat_template::labelled("Question:", "Answer:");  //!< of messages
};

//! A request for text that is right as far as it can be told without the models.
struct api_request {
  endpoint from = endpoint::completions;
  text_request texts;
  bool stream = false;
  bool include_usage = false;

  bool log_probs() const { return texts.options.log_probs >= 0; }
};

//! Reads the body of a request. Fields that it does not know are ignored; those of OpenAI's that would change the text,
//! but are not supported, must have the value that changes nothing.
//!
//! Errors      api_error, 400 or 404, for a body that is no JSON object, a field of a wrong type or out of its range,
//!             and a model that is not served
api_request read_request(endpoint from, std::string_view body, const request_rules& rules,
                         const espalier::tokenizer& tokenizer);

}  // namespace serve
