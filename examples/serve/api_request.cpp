// SPDX-License-Identifier: BSL-1.0
#include "api_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "../models/vocabulary_of.hpp"
#include "espalier/constraint/schema/json_schema.hpp"
#include "member_text.hpp"

namespace serve {

namespace {

using espalier::token_id;
using nlohmann::json;

constexpr std::size_t most_stop_strings = 16, longest_stop_string = 256;
constexpr double least_top_p = 1e-6;  // used by the sampler in place of 0

[[noreturn]] void refuse(const std::string& param, const std::string& message, const std::string& code) {
  throw api_error(400, message, param, code);
}

// A value for a message, cut to one line.
std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

[[noreturn]] void refuse_type(const std::string& name, const std::string& allowed, const json& given) {
  refuse(name, fmt::format("{} must be {}, but is {}.", name, allowed, shown(given)), "invalid_type");
}

[[noreturn]] void refuse_value(const std::string& name, const std::string& allowed, const json& given) {
  refuse(name, fmt::format("{} must be {}, but is {}.", name, allowed, shown(given)), "invalid_value");
}

// The fields of an object; a field that is null counts as absent.
class fields {
 public:
  explicit fields(const json& object, std::string within = {}) : object_(object), within_(std::move(within)) {}

  const json* find(const char* name) const {
    const auto at = object_.find(name);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }

  std::string full_name(const char* name) const { return within_.empty() ? name : within_ + "." + name; }

  bool flag(const char* name) const {
    const json* value = find(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) refuse_type(full_name(name), "true or false", *value);
    return value->get<bool>();
  }

  double number(const char* name, double low, double high, double otherwise) const {
    const json* value = find(name);
    if (value == nullptr) return otherwise;
    const std::string allowed = fmt::format("a number from {} to {}", low, high);
    if (!value->is_number()) refuse_type(full_name(name), allowed, *value);
    const auto found = value->get<double>();
    if (!(found >= low && found <= high)) refuse_value(full_name(name), allowed, *value);
    return found;
  }

  std::int64_t integer(const char* name, std::int64_t low, std::int64_t high, std::int64_t otherwise) const {
    const json* value = find(name);
    if (value == nullptr) return otherwise;
    const std::string allowed = fmt::format("a whole number from {} to {}", low, high);
    if (!value->is_number_integer()) refuse_type(full_name(name), allowed, *value);
    const bool too_large = value->is_number_unsigned() &&
                           value->get<std::uint64_t>() > std::uint64_t{(std::numeric_limits<std::int64_t>::max)()};
    const std::int64_t found = too_large ? high : value->get<std::int64_t>();
    if (too_large || found < low || found > high) refuse_value(full_name(name), allowed, *value);
    return found;
  }

 private:
  const json& object_;
  std::string within_;
};

// Parses a body. Deep nesting is refused while it is read, since code that copies and writes a value calls itself for
// each level.
json parse(std::string_view body) {
  static constexpr int max_depth = 200;
  const auto require_flat = [](int depth, json::parse_event_t event, const json&) {
    const bool begins = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (begins && depth >= max_depth) {
      refuse("", fmt::format("The body is too deep: it has arrays and objects more than {} levels deep.", max_depth),
             "invalid_value");
    }
    return true;
  };
  json object;
  try {
    object = json::parse(body, require_flat);
  } catch (const json::parse_error& error) {
    refuse("", fmt::format("The body is not JSON: it cannot be read from byte {} of {} on.", error.byte, body.size()),
           "invalid_json");
  }
  if (!object.is_object()) refuse("", "The body must be a JSON object, but is " + shown(object) + ".", "invalid_type");
  return object;
}

void check_model(const fields& body, const std::string& served) {
  const json* model = body.find("model");
  if (model == nullptr) return;
  if (!model->is_string()) refuse_type("model", "a string", *model);
  if (*model == served) return;
  throw api_error(404, fmt::format("There is no model {}; this server has \"{}\".", shown(*model), served), "model",
                  "model_not_found");
}

// Checks known fields of OpenAI's API that are not supported: each may have the value that changes nothing.
void check_unsupported(const fields& body) {
  const auto must_be = [&](const char* name, const json& neutral) {
    const json* value = body.find(name);
    if (value == nullptr || *value == neutral) return;
    refuse(
        name,
        fmt::format("{} is not supported: it must be {} or left out, but is {}.", name, neutral.dump(), shown(*value)),
        "unsupported_value");
  };
  must_be("echo", false);
  must_be("suffix", "");
  must_be("tools", json::array());
  must_be("functions", json::array());
}

std::vector<token_id> tokens_of(const json& list, std::int32_t vocab_size) {
  std::vector<token_id> tokens;
  tokens.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const json& token = list[i];
    const std::string name = fmt::format("prompt[{}]", i);
    const std::string allowed = fmt::format("a token id from 0 to {}", vocab_size - 1);
    if (!token.is_number_integer()) refuse_type(name, allowed, token);
    if (token < 0 || token >= vocab_size) refuse_value(name, allowed, token);
    tokens.push_back(token.get<token_id>());
  }
  return tokens;
}

std::vector<token_id> read_prompt(const fields& body, const request_rules& rules,
                                  const espalier::tokenizer& tokenizer) {
  const json* prompt = body.find("prompt");
  constexpr auto allowed = "a string, or an array of token ids that is not empty";
  if (prompt == nullptr) {
    refuse("prompt", fmt::format("prompt is missing: it must be {}.", allowed), "missing_required_parameter");
  }
  if (prompt->is_array() && prompt->size() == 1 && prompt->front().is_string()) prompt = &prompt->front();
  if (prompt->is_string()) return tokenizer.encode_prompt(prompt->get_ref<const std::string&>());
  if (!prompt->is_array() || prompt->empty()) refuse_type("prompt", allowed, *prompt);
  if (!prompt->front().is_number()) refuse_type("prompt", std::string(allowed) + ", one prompt a request", *prompt);
  return tokens_of(*prompt, rules.vocab_size);
}

// The content of a message: a string, or parts of text.
std::string content_of(const json& message, const std::string& name) {
  constexpr auto allowed = "a string, or an array of {\"type\": \"text\", \"text\": ...}";
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    refuse(name + ".content", fmt::format("{}.content is missing: it must be {}.", name, allowed),
           "missing_required_parameter");
  }
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) refuse_type(name + ".content", allowed, *content);
  std::string text;
  for (const json& part : *content) {
    const bool is_text =
        part.is_object() && part.value("type", json()) == "text" && part.contains("text") && part["text"].is_string();
    if (!is_text) refuse_value(name + ".content", allowed, part);
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

std::vector<espalier::chat_message> read_messages(const fields& body) {
  const json* messages = body.find("messages");
  constexpr auto allowed = "an array of {\"role\": ..., \"content\": ...} that is not empty";
  if (messages == nullptr)
    refuse("messages", fmt::format("messages is missing: it must be {}.", allowed), "missing_required_parameter");
  if (!messages->is_array() || messages->empty()) refuse_type("messages", allowed, *messages);
  std::vector<espalier::chat_message> read;
  for (std::size_t i = 0; i < messages->size(); ++i) {
    const json& message = (*messages)[i];
    const std::string name = fmt::format("messages[{}]", i);
    if (!message.is_object()) refuse_type(name, "an object with role and content", message);
    const json role = message.value("role", json());
    if (role != "system" && role != "developer" && role != "user" && role != "assistant")
      refuse_value(name + ".role", "system, developer, user or assistant", role);
    read.push_back({role == "developer" ? "system" : role.get<std::string>(), content_of(message, name)});
  }
  return read;
}

// Reads the messages of a chat into a prompt. The answer ends where its turn ends.
void read_chat(const fields& body, const espalier::chat_template& chat, const espalier::tokenizer& tokenizer,
               text_request& texts) {
  const std::vector<espalier::chat_message> messages = read_messages(body);
  try {
    texts.prompt = chat.tokens(tokenizer, messages);
  } catch (const espalier::input_error& error) {
    refuse("messages", std::string("messages cannot be read: ") + error.what(), "invalid_value");
  }
  const std::string& end = chat.end_of_turn();
  const token_id token = tokenizer.find(end);
  if (token >= 0) {
    if (std::find(texts.stop.tokens.begin(), texts.stop.tokens.end(), token) == texts.stop.tokens.end())
      texts.stop.tokens.push_back(token);
  } else if (!end.empty()) {
    texts.stop.strings.push_back(end);
  }
}

void read_stop(const fields& body, espalier::stop_conditions& stop) {
  const json* given = body.find("stop");
  if (given == nullptr) return;
  const std::string allowed = fmt::format("a string, or an array of up to {} strings, of 1 to {} bytes each",
                                          most_stop_strings, longest_stop_string);
  const json list = given->is_array() ? *given : json::array({*given});
  if (list.size() > most_stop_strings) refuse_value("stop", allowed, *given);
  for (const json& one : list) {
    if (!one.is_string()) refuse_type("stop", allowed, *given);
    const auto& text = one.get_ref<const std::string&>();
    if (text.empty() || text.size() > longest_stop_string) refuse_value("stop", allowed, *given);
    stop.strings.push_back(text);
  }
}

void read_sampling(const fields& body, espalier::text_options& options) {
  options.sampling.temperature = static_cast<float>(body.number("temperature", 0, 2, 1));
  options.sampling.top_p = static_cast<float>((std::max)(body.number("top_p", 0, 1, 1), least_top_p));
  options.sampling.top_k = static_cast<std::int32_t>(body.integer("top_k", 0, 1 << 30, 0));
  options.sampling.min_p = static_cast<float>(body.number("min_p", 0, 1, 0));
  if (body.find("seed") == nullptr) return;
  constexpr auto limits = std::numeric_limits<std::int64_t>();
  options.seed = static_cast<std::uint64_t>(body.integer("seed", (limits.min)(), (limits.max)(), 0));
}

void read_log_probs(const fields& body, endpoint from, espalier::text_options& options) {
  if (from == endpoint::completions) {
    options.log_probs = static_cast<std::int32_t>(body.integer("logprobs", 0, 5, -1));
    return;
  }
  const auto best = static_cast<std::int32_t>(body.integer("top_logprobs", 0, 20, 0));
  if (body.flag("logprobs")) {
    options.log_probs = best;
  } else if (best > 0) {
    refuse("top_logprobs", "top_logprobs needs logprobs, which must be true.", "invalid_value");
  }
}

espalier::logit_bias read_logit_bias(const fields& body, std::int32_t vocab_size) {
  const json* given = body.find("logit_bias");
  if (given == nullptr) return {};
  const std::string allowed =
      fmt::format("an object of token ids from 0 to {} and numbers from -100 to 100", vocab_size - 1);
  if (!given->is_object()) refuse_type("logit_bias", allowed, *given);
  std::vector<espalier::token_bias> biases;
  for (const auto& [id, bias] : given->items()) {
    const bool is_token = !id.empty() && id.size() < 9 && id.find_first_not_of("0123456789") == std::string::npos;
    const int token = is_token ? std::stoi(id) : -1;
    const double value = bias.is_number() ? bias.get<double>() : 1000;
    if (token < 0 || token >= vocab_size || !(value >= -100 && value <= 100))
      refuse_value("logit_bias", allowed, *given);
    biases.push_back({token, value});
  }
  return espalier::logit_bias(std::move(biases), vocab_size);
}

// The schema of the text to write, byte for byte; empty: any text. `text` is the request's body.
std::string_view read_response_format(const fields& body, std::string_view text) {
  const json* given = body.find("response_format");
  constexpr auto allowed =
      "{\"type\": \"text\"}, {\"type\": \"json_object\"} or {\"type\": \"json_schema\", \"json_schema\": {\"schema\": "
      "...}}";
  if (given == nullptr) return {};
  if (!given->is_object()) refuse_type("response_format", allowed, *given);
  const json type = given->value("type", json());
  if (type == "text") return {};
  if (type == "json_object") return R"({"type": "object"})";
  const bool has_schema = type == "json_schema" && given->contains("json_schema") &&
                          (*given)["json_schema"].is_object() && (*given)["json_schema"].contains("schema");
  if (!has_schema) refuse_value("response_format", allowed, *given);
  for (const char* name : {"response_format", "json_schema", "schema"})
    text = member_text(text, name);
  return text;
}

// The grammar of the text to write; empty: any text.
std::string read_grammar(const fields& body) {
  const json* given = body.find("grammar");
  if (given == nullptr) return {};
  if (!given->is_string()) refuse_type("grammar", "a string, a grammar in EBNF", *given);
#if defined(EXAMPLES_HAS_XGRAMMAR)
  if (*given == "") refuse_value("grammar", "a grammar in EBNF, which has a rule", *given);
#else
  refuse("grammar", "grammar needs xgrammar, without which this server was built: it must be left out.",
         "unsupported_value");
#endif
  return given->get<std::string>();
}

models::text_rule rule_of(std::string_view schema, [[maybe_unused]] std::string_view grammar,
                          const espalier::vocabulary_trie& vocabulary) {
#if defined(EXAMPLES_HAS_XGRAMMAR)
  if (!grammar.empty()) return models::text_rule(espalier::ebnf_grammar(grammar, vocabulary));
#endif
  return models::text_rule(espalier::json_schema(schema, vocabulary));
}

text_processor read_processor(const fields& body, std::string_view text, const request_rules& rules,
                              const espalier::tokenizer& tokenizer) {
  const espalier::penalties penalties(
      {.presence = body.number("presence_penalty", -2, 2, 0), .frequency = body.number("frequency_penalty", -2, 2, 0)});
  const espalier::logit_bias biases = read_logit_bias(body, rules.vocab_size);
  const std::string_view schema = read_response_format(body, text);
  const std::string grammar = read_grammar(body);
  if (!schema.empty() && !grammar.empty())
    refuse("grammar", "grammar does not go with a response_format: one of them must be left out.", "invalid_value");
  if (schema.empty() && grammar.empty()) return text_processor(biases, penalties, {});
  try {
    const auto vocabulary = rules.vocabulary ? *rules.vocabulary : models::vocabulary_of(tokenizer);
    return text_processor(biases, penalties, espalier::constrained(rule_of(schema, grammar, vocabulary)));
  } catch (const espalier::input_error& error) {
    refuse(grammar.empty() ? "response_format" : "grammar", error.what(), "invalid_value");
  }
}

std::int32_t read_max_tokens(const fields& body, endpoint from) {
  constexpr std::int32_t most = (std::numeric_limits<std::int32_t>::max)();
  const std::int64_t otherwise = from == endpoint::completions ? 16 : most;
  const std::int64_t max_tokens = body.integer("max_tokens", 1, most, otherwise);
  return static_cast<std::int32_t>(body.integer("max_completion_tokens", 1, most, max_tokens));
}

}  // namespace

api_request read_request(endpoint from, std::string_view text, const request_rules& rules,
                         const espalier::tokenizer& tokenizer) {
  const json object = parse(text);
  const fields body(object);
  check_model(body, rules.model);
  check_unsupported(body);

  api_request request;
  request.from = from;
  text_request& texts = request.texts;
  texts.stop.max_tokens = read_max_tokens(body, from);
  texts.stop.show_string = false;
  texts.stop.tokens = tokenizer.ends_of_text();
  read_stop(body, texts.stop);
  read_sampling(body, texts.options);
  read_log_probs(body, from, texts.options);
  texts.process = read_processor(body, text, rules, tokenizer);
  texts.n = static_cast<std::int32_t>(body.integer("n", 1, rules.most_texts, 1));
  if (body.integer("best_of", 1, rules.most_texts, texts.n) != texts.n)
    refuse("best_of", "best_of is not supported: it must be n or left out.", "unsupported_value");

  request.stream = body.flag("stream");
  if (const json* options = body.find("stream_options")) {
    if (!options->is_object()) refuse_type("stream_options", "an object", *options);
    if (!request.stream) refuse("stream_options", "stream_options goes with \"stream\": true only.", "invalid_value");
    request.include_usage = fields(*options, "stream_options").flag("include_usage");
  }

  if (from == endpoint::chat) {
    read_chat(body, rules.chat, tokenizer, texts);
  } else {
    texts.prompt = read_prompt(body, rules, tokenizer);
  }
  const auto n_tokens = static_cast<std::int64_t>(texts.prompt.size());
  if (n_tokens >= rules.context) {
    refuse(from == endpoint::chat ? "messages" : "prompt",
           fmt::format("The prompt has {} tokens, but this model's context is {} tokens, one of which must be left to "
                       "write.",
                       n_tokens, rules.context),
           "context_length_exceeded");
  }
  return request;
}

}  // namespace serve
