// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api_error.hpp"
#include "api_request.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"
#include "text_request.hpp"
#include "tool_calls.hpp"
#include "whole_characters.hpp"

namespace serve {

using json = nlohmann::ordered_json;

//! JSON on one line, whatever bytes are in it.
std::string to_text(const json& object);

//! OpenAI's error object.
json error_object(const api_error& error);

//! The part of a text that may be shown so far. Events may end within a character, and may have tokens whose bytes are
//! still held back.
class shown_text {
 public:
  struct piece {
    std::string text;
    std::vector<scored_token> tokens;
    //! position of the first of these tokens in the text, in bytes; less than 0 if it begins before the text
    std::ptrdiff_t offset = 0;
  };

  explicit shown_text(const espalier::tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  //! Shows a prompt before the text, as soon as all its tokens but the first one have been told; where none will be
  //! told (is_scored is false) at once.
  void begin_with(std::string prompt, std::span<const espalier::token_id> tokens, bool is_scored);

  piece take(const text_event& event);

 private:
  const espalier::tokenizer& tokenizer_;
  whole_characters whole_;
  std::string prompt_{};              // text to show first
  std::size_t n_untold_ = 0;          // tokens of the prompt that were not told yet
  std::deque<scored_token> waiting_;  // tokens that are not shown yet
  std::ptrdiff_t shown_ = 0;          // bytes that were shown
  std::ptrdiff_t told_ = 0;           // bytes of the tokens that were shown
};

//! The replies to one request in the form of OpenAI's API. It is given every event that writes, and none of a text that
//! has ended. Request and tokenizer must outlive it.
class api_reply {
 public:
  api_reply(const api_request& request, std::string model, const espalier::tokenizer& tokenizer);

  //! For streams: the first objects, one for each text; empty if there are none.
  std::vector<json> opening() const;
  //! For streams: the object for an event; null if it has nothing to show.
  json chunk(const text_event& event);
  //! For streams: the last object; null if it was not asked for.
  json closing() const;

  //! For whole replies: add() takes an event; whole() is the reply, once every text has ended.
  void add(const text_event& event);
  json whole() const;

  //! True if every text has ended.
  bool complete() const { return n_ended_ == static_cast<std::int32_t>(choices_.size()); }

 private:
  struct choice_state {
    shown_text shown;
    std::optional<marked_text> marked{};
    std::optional<call_reader> reader{};
    whole_characters whole{};  // of the text without calls
    int n_calls = 0;
    std::string text{};
    json calls = json::array();  // calls so far, in the form of whole replies
    json log_probs{};
    json finish_reason{};
    double log_prob = 0;  // sum over the text's tokens
    std::int64_t n_tokens = 0;

    double mean_log_prob() const { return n_tokens > 0 ? log_prob / static_cast<double>(n_tokens) : 0; }
  };

  // The part of a text that an event adds.
  struct news {
    shown_text::piece piece{};   // its text without calls
    json calls = json::array();  // calls, with their numbers
    json finish_reason{};
  };

  bool is_chat() const { return request_.from == endpoint::chat; }
  json head(bool of_stream) const;
  json usage() const;
  json log_probs(const shown_text::piece& piece) const;
  news take(const text_event& event);
  std::vector<std::size_t> best_choices() const;

  const api_request& request_;
  std::string model_;
  const espalier::tokenizer& tokenizer_;
  std::string id_;
  std::int64_t created_;  // in seconds since 1970
  std::vector<choice_state> choices_;
  std::int32_t n_ended_ = 0;
  std::int64_t n_written_ = 0;  // tokens written
};

}  // namespace serve
