// SPDX-License-Identifier: BSL-1.0
#include "api_reply.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
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

// A log-probability; null if it is not a number: the first token of a prompt has none.
json number_of(double log_prob) {
  return std::isnan(log_prob) ? json() : json(log_prob);
}

json completion_log_probs(const shown_text::piece& piece, const espalier::tokenizer& tokenizer) {
  json tokens = json::array(), log_probs = json::array(), best = json::array(), offsets = json::array();
  std::ptrdiff_t offset = piece.offset;
  for (const scored_token& token : piece.tokens) {
    const std::string_view bytes = tokenizer.piece(token.token);
    tokens.push_back(token_name(bytes));
    log_probs.push_back(number_of(token.log_prob));
    offsets.push_back((std::max)(offset, std::ptrdiff_t{0}));
    offset += static_cast<std::ptrdiff_t>(bytes.size());
    if (std::isnan(token.log_prob)) {
      best.push_back(nullptr);
      continue;
    }
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

// A new name for a call of a function: nine letters and digits, as the strictest of chat templates ask for.
std::string call_id() {
  constexpr std::string_view signs = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string id;
  for (std::uint64_t rest = espalier::fresh_seed(); id.size() < 9; rest /= signs.size())
    id += signs[rest % signs.size()];
  return id;
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

void shown_text::begin_with(std::string prompt, std::span<const espalier::token_id> tokens, bool is_scored) {
  prompt_ = std::move(prompt);
  if (!is_scored) return;
  n_untold_ = tokens.size() - 1;
  waiting_.push_back({{tokens.front(), std::numeric_limits<double>::quiet_NaN()}, {}});
  // Tokenizers may begin a text with a space that the prompt does not have.
  told_ = static_cast<std::ptrdiff_t>(prompt_.size()) - static_cast<std::ptrdiff_t>(tokenizer_.decode(tokens).size());
}

shown_text::piece shown_text::take(const text_event& event) {
  piece result;
  waiting_.insert(waiting_.end(), event.prompt.begin(), event.prompt.end());
  n_untold_ -= event.prompt.size();
  if (n_untold_ == 0) {
    shown_ += static_cast<std::ptrdiff_t>(prompt_.size());
    result.text = whole_.push(std::exchange(prompt_, {}));
  }
  result.text += whole_.push(event.bytes);
  if (event.ends()) result.text += whole_.finish();
  shown_ += static_cast<std::ptrdiff_t>(event.bytes.size());
  waiting_.insert(waiting_.end(), event.tokens.begin(), event.tokens.end());
  result.offset = told_;
  // A token is shown together with its first byte. A token that ends the text has no bytes to show.
  while (!waiting_.empty() && told_ < shown_) {
    told_ += static_cast<std::ptrdiff_t>(tokenizer_.piece(waiting_.front().token).size());
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
  const text_request& texts = request.texts;
  for (std::int32_t i = 0; i < texts.n_texts(); ++i) {
    choice_state& choice = choices_.emplace_back(choice_state{shown_text(tokenizer)});
    if (request.echo) {
      const auto prompt = static_cast<std::size_t>(i / texts.n);
      choice.shown.begin_with(request.prompt_texts[prompt], texts.prompts[prompt], texts.options.prompt_log_probs);
    }
    if (request.tools) {
      choice.marked.emplace(request.tools->form, tokenizer);
      choice.reader.emplace(*request.tools);
    }
  }
}

json api_reply::head(bool of_stream) const {
  const char* object = !is_chat() ? "text_completion" : (of_stream ? "chat.completion.chunk" : "chat.completion");
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}, {"choices", json::array()}};
}

json api_reply::usage() const {
  const std::int64_t n_read = request_.texts.n_prompt_tokens();
  return {{"prompt_tokens", n_read}, {"completion_tokens", n_written_}, {"total_tokens", n_read + n_written_}};
}

json api_reply::log_probs(const shown_text::piece& piece) const {
  if (!request_.shows_log_probs) return nullptr;
  return is_chat() ? chat_log_probs(piece, tokenizer_) : completion_log_probs(piece, tokenizer_);
}

api_reply::news api_reply::take(const text_event& event) {
  choice_state& to = choices_[static_cast<std::size_t>(event.choice)];
  n_written_ += event.n_tokens;
  if (event.ends()) ++n_ended_;
  for (const scored_token& token : event.tokens)
    to.log_prob += token.log_prob;
  to.n_tokens += event.n_tokens;

  news result{to.shown.take(event), json::array(), finish_reason(event.state)};
  if (to.reader) {
    call_reader::parts parts = to.reader->push(to.marked->push(event.bytes, event.written));
    if (event.ends()) {
      call_reader::parts last = to.reader->finish();
      parts.content += last.content;
    }
    result.piece.text = to.whole.push(parts.content);
    if (event.ends()) result.piece.text += to.whole.finish();
    for (const tool_call& call : parts.calls) {
      const json function = {{"name", call.name}, {"arguments", whole_characters::of(call.arguments)}};
      result.calls.push_back(
          {{"index", to.n_calls++}, {"id", call_id()}, {"type", "function"}, {"function", function}});
    }
    // A text that must be a call is whole once the call is told, be it that no token was left to end it.
    const bool is_whole = result.finish_reason == "stop" || (request_.tools->must_call && event.ends());
    if (to.n_calls > 0 && is_whole) result.finish_reason = "tool_calls";
  }
  return result;
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
  const news found = take(event);
  const shown_text::piece& piece = found.piece;
  if (piece.text.empty() && piece.tokens.empty() && found.calls.empty() && !event.ends()) return nullptr;
  json choice = {{"index", event.choice}, {"logprobs", log_probs(piece)}, {"finish_reason", found.finish_reason}};
  if (is_chat()) {
    choice["delta"] = piece.text.empty() ? json::object() : json{{"content", piece.text}};
    if (!found.calls.empty()) choice["delta"]["tool_calls"] = found.calls;
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
  news found = take(event);
  choice_state& to = choices_[static_cast<std::size_t>(event.choice)];
  to.text += found.piece.text;
  for (json& call : found.calls) {
    call.erase("index");  // of streams alone
    to.calls.push_back(std::move(call));
  }
  if (request_.shows_log_probs) append(to.log_probs, log_probs(found.piece));
  to.finish_reason = found.finish_reason;
}

// The numbers of the texts of the reply: after each prompt the best, the most probable by their tokens' mean first, or
// all in order.
std::vector<std::size_t> api_reply::best_choices() const {
  std::vector<std::size_t> order(choices_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::int32_t n = request_.n, written = request_.texts.n;
  if (n == written) return order;
  std::vector<std::size_t> best;
  for (auto first = order.begin(); first != order.end(); first += written) {
    std::stable_sort(first, first + written, [&](std::size_t a, std::size_t b) {
      return choices_[a].mean_log_prob() > choices_[b].mean_log_prob();
    });
    best.insert(best.end(), first, first + n);
  }
  return best;
}

json api_reply::whole() const {
  json result = head(false);
  for (const std::size_t i : best_choices()) {
    const choice_state& from = choices_[i];
    json choice = {
        {"index", result["choices"].size()}, {"logprobs", from.log_probs}, {"finish_reason", from.finish_reason}};
    if (is_chat()) {
      choice["message"] = {{"role", "assistant"}, {"content", from.text}, {"refusal", nullptr}};
      if (!from.calls.empty()) {
        if (from.text.empty()) choice["message"]["content"] = nullptr;
        choice["message"]["tool_calls"] = from.calls;
      }
    } else {
      choice["text"] = from.text;
    }
    result["choices"].push_back(std::move(choice));
  }
  result["usage"] = usage();
  return result;
}

}  // namespace serve
