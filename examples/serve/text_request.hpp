// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "espalier/core/status.hpp"
#include "espalier/core/token.hpp"
#include "espalier/decoder/log_probs.hpp"
#include "espalier/decoder/stop.hpp"
#include "espalier/decoder/text_options.hpp"
#include "espalier/processor/banned_sequences.hpp"
#include "espalier/processor/constrained.hpp"
#include "espalier/processor/logit_bias.hpp"
#include "espalier/processor/minimum_length.hpp"
#include "espalier/processor/penalties.hpp"
#include "espalier/processor/processors.hpp"
#include "served_rule.hpp"
#include "token_set.hpp"

namespace serve {

//! The processors of the target's logits that requests may use.
using text_processor =
    espalier::processors<espalier::logit_bias, espalier::penalties, espalier::constrained<token_set>,
                         espalier::banned_sequences, espalier::minimum_length, espalier::constrained<served_rule>>;

//! A request for n texts after each of some prompts. The texts after a prompt have random streams of their own.
struct text_request {
  std::vector<std::vector<espalier::token_id>> prompts;
  espalier::stop_conditions stop;
  espalier::text_options options;
  text_processor process{};
  std::shared_ptr<rule_use> rule{};  //!< the rule in `process`; null: none
  std::string rule_field{};          //!< the field of the request that gives the rule
  std::int32_t n = 1;
  bool tells_tokens = false;  //!< true if events have the tokens that were written

  std::int32_t n_texts() const { return n * static_cast<std::int32_t>(prompts.size()); }
  std::int64_t n_prompt_tokens() const {
    std::int64_t n_tokens = 0;
    for (const auto& prompt : prompts)
      n_tokens += static_cast<std::int64_t>(prompt.size());
    return n_tokens;
  }
};

//! A token of a text with its log-probability, and the most probable tokens at its position.
struct scored_token : espalier::token_log_prob {
  std::vector<espalier::token_log_prob> best;
};

//! An event of a request. First it is accepted, for all its texts, or refused. A text is then written piece by piece
//! until its state is not `running`, or fails.
struct text_event {
  enum class kind { accepted, refused, written, failed };

  kind what = kind::written;
  std::int32_t choice = 0;             //!< number of the text: text i after prompt p is number p * n + i
  std::string bytes{};                 //!< new bytes to show
  std::vector<scored_token> tokens{};  //!< the tokens written, if log-probabilities are asked for
  std::vector<scored_token> prompt{};  //!< further tokens of the prompt, if their log-probabilities are asked for
  std::int32_t n_tokens = 0;           //!< number of tokens written
  std::vector<espalier::token_id> written{};  //!< the tokens written, if text_request::tells_tokens
  espalier::status state = espalier::status::running;
  std::string message{};          //!< the reason of a refusal or failure, a sentence
  bool is_clients_fault = false;  //!< of a failure: the request asks for what cannot be done
  std::string field{};            //!< the field of the request that asks for it

  //! True if this is the last event of its text.
  bool ends() const { return what == kind::failed || (what == kind::written && state != espalier::status::running); }
};

}  // namespace serve
