// SPDX-License-Identifier: BSL-1.0
#include "token_request.hpp"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "chat_request.hpp"
#include "fields.hpp"
#include "whole_characters.hpp"

namespace serve {

namespace {

using namespace reading;
using nlohmann::ordered_json;

// The text of a token, or its bytes where they are no characters: llama.cpp's form.
ordered_json piece_of(std::string_view bytes) {
  if (whole_characters::of(bytes) == bytes) return std::string(bytes);
  auto list = ordered_json::array();
  for (const char c : bytes)
    list.push_back(static_cast<unsigned char>(c));
  return list;
}

const std::string& text_of(const fields& body, const char* name) {
  const json* given = body.find(name);
  if (!given->is_string()) refuse_type(name, "a string", *given);
  return given->get_ref<const std::string&>();
}

}  // namespace

ordered_json tokenize(std::string_view text, const request_rules& rules, const espalier::tokenizer& tokenizer) {
  const json object = parse(text);
  const fields body(object);
  check_model(body, rules.model);
  const bool is_chat = body.find("messages") != nullptr;
  check_fields(object, "", tokenize_fields, is_chat ? endpoint::chat : endpoint::completions);
  const bool has_prompt = body.find("prompt") != nullptr, has_content = body.find("content") != nullptr;
  if (is_chat + has_prompt + has_content != 1)
    refuse("prompt", "One of prompt, content and messages must be given.", "missing_required_parameter");

  // content is of llama.cpp's API, the others are of vLLM's; each has options of its own.
  for (const char* name : {"add_special", "with_pieces", "add_special_tokens", "return_token_strs"}) {
    const bool goes_with_content = name == std::string_view("add_special") || name == std::string_view("with_pieces");
    if (body.find(name) != nullptr && goes_with_content != has_content)
      refuse(name, fmt::format("{} goes {} content.", name, has_content ? "not with" : "only with"), "invalid_value");
  }

  std::vector<token_id> tokens;
  if (is_chat) {
    tokens = read_chat(body, text, rules.chat, tokenizer, rules.calls).tokens;
  } else {
    const std::string& words = text_of(body, has_prompt ? "prompt" : "content");
    // vLLM's API adds the first token of a text unless it is told not to, llama.cpp's only if it is told to.
    const char* name = has_prompt ? "add_special_tokens" : "add_special";
    const bool adds = body.find(name) == nullptr ? has_prompt : body.flag(name);
    const bool is_trusted = body.flag("parse_special");
    tokens = is_trusted ? tokenizer.encode_trusted(words) : tokenizer.encode(words);
    if (adds && tokenizer.begin_of_text() >= 0) tokens.insert(tokens.begin(), tokenizer.begin_of_text());
  }
  if (has_content) {
    if (!body.flag("with_pieces")) return {{"tokens", tokens}};
    auto list = ordered_json::array();
    for (const token_id token : tokens)
      list.push_back({{"id", token}, {"piece", piece_of(tokenizer.piece(token))}});
    return {{"tokens", std::move(list)}};
  }
  ordered_json reply = {
      {"count", tokens.size()}, {"max_model_len", rules.context}, {"tokens", tokens}, {"token_strs", nullptr}};
  if (body.flag("return_token_strs")) {
    reply["token_strs"] = ordered_json::array();
    for (const token_id token : tokens)
      reply["token_strs"].push_back(whole_characters::of(tokenizer.piece(token)));
  }
  return reply;
}

ordered_json detokenize(std::string_view text, const request_rules& rules, const espalier::tokenizer& tokenizer) {
  const json object = parse(text);
  const fields body(object);
  check_model(body, rules.model);
  check_fields(object, "", detokenize_fields, endpoint::completions);
  const json* given = body.find("tokens");
  if (given == nullptr)
    refuse("tokens", "tokens is missing: it must be an array of token ids.", "missing_required_parameter");
  if (!given->is_array()) refuse_type("tokens", "an array of token ids", *given);
  const std::string words =
      whole_characters::of(tokenizer.decode(reading::tokens_of(*given, "tokens", rules.vocab_size)));
  return {{"prompt", words}, {"content", words}};
}

}  // namespace serve
