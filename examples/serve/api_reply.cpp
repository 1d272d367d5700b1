// SPDX-License-Identifier: BSL-1.0
#include "api_reply.hpp"

#include <fmt/format.h>

#include <chrono>
#include <string_view>
#include <utility>

#include "espalier/core/status.hpp"
#include "espalier/decoder/text.hpp"

namespace serve {

namespace {

// The reason why a text has ended; null while it has not.
json finish_reason(espalier::status state) {
  switch (state) {
    case espalier::status::stop_token:
    case espalier::status::stop_string:
      return "stop";
    case espalier::status::length:
    case espalier::status::context_full:
      return "length";
    case espalier::status::nothing_allowed:
      return "content_filter";
    default:
      return nullptr;
  }
}

json bytes_of(std::string_view text) {
  json bytes = json::array();
  for (const char c : text)
    bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

// The name of a token in a completion's log-probabilities: its text, or OpenAI's bytes:\xf0\x9f where its bytes are no
// whole characters.
std::string token_name(std::string_view bytes) {
  std::string name = whole_characters::of(bytes);
  if (name == bytes) return name;
  name = "bytes:";
  for (const char c : bytes)
    name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return name;
}

// A token in the form of chat replies.
json chat_token(const espalier::token_log_prob& token, const espalier::tokenizer& tokenizer) {
  const std::string_view piece = tokenizer.piece(token.token);
  return {{"token", whole_characters::of(piece)}, {"logprob", token.log_prob}, {"bytes", bytes_of(piece)}};
}

json chat_log_probs(const shown_text::piece& piece, const espalier::tokenizer& tokenizer) {
  json content = json::array();
  for (const scored_token& token : piece.tokens) {
    json entry = chat_token(token, tokenizer);
    entry["top_logprobs"] = json::array();
    for (const espalier::token_log_prob& best : token.best)
      entry["top_logprobs"].push_back(chat_token(best, tokenizer));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

json completion_log_probs(const shown_text::piece& piece, const espalier::tokenizer& tokenizer) {
  json tokens = json::array(), log_probs = json::array(), best = json::array(), offsets = json::array();
  std::size_t offset = piece.offset;
  for (const scored_token& token : piece.tokens) {
    const std::string_view bytes = tokenizer.piece(token.token);
    tokens.push_back(token_name(bytes));
    log_probs.push_back(token.log_prob);
    offsets.push_back(offset);
    offset += bytes.size();
    json others = json::object();
    for (const espalier::token_log_prob& other : token.best)
      others.emplace(token_name(tokenizer.piece(other.token)), other.log_prob);  // the best of several of one name
    best.push_back(std::move(others));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(log_probs)},
          {"top_logprobs", std::move(best)},
          {"text_offset", std::move(offsets)}};
}

// Appends the lists of one object to those of the other.
void append(json& to, const json& more) {
  if (to.is_null()) {
    to = more;
    return;
  }
  for (const auto& [name, list] : more.items()) {
    if (list.is_array()) to[name].insert(to[name].end(), list.begin(), list.end());
  }
}

}  // namespace

std::string to_text(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

json error_object(const api_error& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? json() : json(text); };
  return {{"error",
           {{"message", error.what()},
            {"type", error.type()},
            {"param", or_null(error.param)},
            {"code", or_null(error.code)}}}};
}

shown_text::piece shown_text::take(const text_event& event) {
  piece result;
  result.text = whole_.push(event.bytes);
  if (event.ends()) result.text += whole_.finish();
  shown_ += event.bytes.size();
  waiting_.insert(waiting_.end(), event.tokens.begin(), event.tokens.end());
  result.offset = told_;
  // A token is shown together with its first byte. A token that ends the text has no bytes to show.
  while (!waiting_.empty() && told_ < shown_) {
    told_ += tokenizer_.piece(waiting_.front().token).size();
    result.tokens.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return result;
}

api_reply::api_reply(const api_request& request, std::string model, const espalier::tokenizer& tokenizer)
    : request_(request),
      model_(std::move(model)),
      tokenizer_(tokenizer),
      id_(fmt::format("{}-{:016x}", is_chat() ? "chatcmpl" : "cmpl", espalier::fresh_seed())),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()) {
  for (std::int32_t i = 0; i < request.texts.n; ++i)
    choices_.push_back({shown_text(tokenizer)});
}

json api_reply::head(bool of_stream) const {
  const char* object = !is_chat() ? "text_completion" : (of_stream ? "chat.completion.chunk" : "chat.completion");
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}, {"choices", json::array()}};
}

json api_reply::usage() const {
  const auto n_read = static_cast<std::int64_t>(request_.texts.prompt.size());
  return {{"prompt_tokens", n_read}, {"completion_tokens", n_written_}, {"total_tokens", n_read + n_written_}};
}

json api_reply::log_probs(const shown_text::piece& piece) const {
  if (!request_.log_probs()) return nullptr;
  return is_chat() ? chat_log_probs(piece, tokenizer_) : completion_log_probs(piece, tokenizer_);
}

void api_reply::count(const text_event& event) {
  n_written_ += event.n_tokens;
  if (event.ends()) ++n_ended_;
}

std::vector<json> api_reply::opening() const {
  std::vector<json> chunks;
  for (std::size_t i = 0; is_chat() && i < choices_.size(); ++i) {
    chunks.push_back(head(true));
    chunks.back()["choices"] = {{{"index", i},
                                 {"delta", {{"role", "assistant"}, {"content", ""}}},
                                 {"logprobs", nullptr},
                                 {"finish_reason", nullptr}}};
    if (request_.include_usage) chunks.back()["usage"] = nullptr;
  }
  return chunks;
}

json api_reply::chunk(const text_event& event) {
  count(event);
  const shown_text::piece piece = choices_[static_cast<std::size_t>(event.choice)].shown.take(event);
  if (piece.text.empty() && piece.tokens.empty() && !event.ends()) return nullptr;
  json choice = {
      {"index", event.choice}, {"logprobs", log_probs(piece)}, {"finish_reason", finish_reason(event.state)}};
  if (is_chat()) {
    choice["delta"] = piece.text.empty() ? json::object() : json{{"content", piece.text}};
  } else {
    choice["text"] = piece.text;
  }
  json result = head(true);
  result["choices"].push_back(std::move(choice));
  if (request_.include_usage) result["usage"] = nullptr;
  return result;
}

json api_reply::closing() const {
  if (!request_.include_usage) return nullptr;
  json result = head(true);
  result["usage"] = usage();
  return result;
}

void api_reply::add(const text_event& event) {
  count(event);
  choice_state& to = choices_[static_cast<std::size_t>(event.choice)];
  const shown_text::piece piece = to.shown.take(event);
  to.text += piece.text;
  if (request_.log_probs()) append(to.log_probs, log_probs(piece));
  to.finish_reason = finish_reason(event.state);
}

json api_reply::whole() const {
  json result = head(false);
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    json choice = {{"index", i}, {"logprobs", choices_[i].log_probs}, {"finish_reason", choices_[i].finish_reason}};
    if (is_chat()) {
      choice["message"] = {{"role", "assistant"}, {"content", choices_[i].text}, {"refusal", nullptr}};
    } else {
      choice["text"] = choices_[i].text;
    }
    result["choices"].push_back(std::move(choice));
  }
  result["usage"] = usage();
  return result;
}

}  // namespace serve
