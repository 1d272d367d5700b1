// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api_error.hpp"
#include "espalier/constraint/vocabulary_trie.hpp"
#include "espalier/model/tokenizer/chat_template.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"
#include "known_fields.hpp"
#include "rule_keeper.hpp"
#include "text_request.hpp"
#include "tool_calls.hpp"

namespace serve {

//! The values that requests are checked against.
struct request_rules {
  std::string model;                                      //!< name of the model
  std::int32_t context = 0;                               //!< tokens of prompt and text together
  std::int32_t vocab_size = 0;                            //!< token ids are below it
  std::int32_t most_texts = 1;                            //!< texts of one request at most
  std::optional<espalier::vocabulary_trie> vocabulary{};  //!< vocabulary of the tokenizer, if texts may have to be JSON
  rule_keeper* keeper = nullptr;  //!< of the rules of requests; null: each request compiles its own
  //! template of the messages of a chat
  espalier::chat_template chat = espalier::chat_template::labelled("Question:", "Answer:");
  std::optional<call_form> calls = call_form();  //!< form in which that template writes calls of functions, if known
};

//! A request for text that has passed all checks that need no model.
struct api_request {
  endpoint from = endpoint::completions;
  text_request texts;
  bool stream = false;
  bool include_usage = false;
  bool shows_log_probs = false;
  std::int32_t n = 1;                       //!< texts after each prompt in the reply: the best of texts.n
  bool echo = false;                        //!< true if a text is shown after its prompt
  std::vector<std::string> prompt_texts{};  //!< prompts as text, if they are shown
  std::optional<tool_use> tools{};          //!< functions that the texts may call
};

//! Reads the body of a request. Nothing that would change the text is passed over: a field is honoured or refused, see
//! known_fields.hpp. A field that is null counts as absent.
//!
//! Errors      api_error: 400 or 404 for a body that is no JSON object, a field that is not known (its nearest name is
//!             told) or not supported, of a wrong type or out of its range, and a model that is not served; 422 for a
//!             rule that takes too much time or memory
api_request read_request(endpoint from, std::string_view body, const request_rules& rules,
                         const espalier::tokenizer& tokenizer);

}  // namespace serve
