// SPDX-License-Identifier: BSL-1.0
#include "api_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../models/vocabulary_of.hpp"
#include "chat_request.hpp"
#include "espalier/constraint/regular_expression.hpp"
#include "espalier/constraint/schema/json_schema.hpp"
#include "fields.hpp"
#include "member_text.hpp"

namespace serve {

namespace {

using namespace reading;

constexpr std::size_t most_stop_strings = 16, most_bad_words = 256, longest_string = 256;  // strings in bytes
constexpr std::size_t most_stop_tokens = 256, most_choices = 1024;
constexpr double least_top_p = 1e-6;  // used by the sampler in place of 0

[[noreturn]] void refuse_length(const std::string& param, const std::string& has, std::int32_t context) {
  refuse(param,
         fmt::format("The prompt has {}, but this model's context is {} tokens, one of which must be left to write.",
                     has, context),
         "context_length_exceeded");
}

// Refuses a text that is too long whatever its tokens are, before it is cut into them.
void check_bytes(std::size_t bytes, const std::string& param, const request_rules& rules) {
  if (!rules.vocabulary) return;
  const auto longest = static_cast<std::size_t>(rules.vocabulary->max_depth());
  const std::size_t fewest = (bytes + longest - 1) / longest;
  if (fewest >= static_cast<std::size_t>(rules.context))
    refuse_length(param, fmt::format("{} bytes, so {} tokens or more", bytes, fewest), rules.context);
}

// The bytes of what messages say, names and marks left out.
std::size_t bytes_of(const json& messages) {
  std::size_t n = 0;
  for (const json& message : messages) {
    const json& content = message.is_object() ? message.value("content", json()) : json();
    if (content.is_string()) n += content.get_ref<const std::string&>().size();
    if (!content.is_array()) continue;
    for (const json& part : content)
      if (part.is_object() && part.contains("text") && part["text"].is_string())
        n += part["text"].get_ref<const std::string&>().size();
  }
  return n;
}

// Reads the prompts of a completion, and their texts where they are shown before what is written.
void read_prompts(const fields& body, const request_rules& rules, const espalier::tokenizer& tokenizer,
                  api_request& request) {
  const json* given = body.find("prompt");
  constexpr auto allowed = "a string, an array of token ids, or an array of prompts of one of these kinds, not empty";
  if (given == nullptr) {
    refuse("prompt", fmt::format("prompt is missing: it must be {}.", allowed), "missing_required_parameter");
  }
  if (!given->is_string() && (!given->is_array() || given->empty())) refuse_type("prompt", allowed, *given);
  const bool is_one = given->is_string() || given->front().is_number();
  const json list = is_one ? json::array({*given}) : *given;
  request.echo = body.flag("echo");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const json& prompt = list[i];
    const std::string name = is_one ? std::string("prompt") : fmt::format("prompt[{}]", i);
    if (prompt.is_string() != list.front().is_string() || (!prompt.is_string() && !prompt.is_array()))
      refuse_type(name, list.front().is_string() ? "a string, as prompt[0] is" : allowed, prompt);
    if (!prompt.is_string() && prompt.empty()) refuse_value(name, "an array of token ids that is not empty", prompt);
    if (prompt.is_string()) check_bytes(prompt.get_ref<const std::string&>().size(), name, rules);
    request.texts.prompts.push_back(prompt.is_string() ? tokenizer.encode_prompt(prompt.get_ref<const std::string&>())
                                                       : reading::tokens_of(prompt, name, rules.vocab_size));
    if (request.echo)
      request.prompt_texts.push_back(prompt.is_string() ? prompt.get<std::string>()
                                                        : tokenizer.decode(request.texts.prompts.back()));
  }
}

// A field with a list of strings; one string stands for a list of itself where `takes_one`.
std::vector<std::string> read_strings(const fields& body, const char* name, std::size_t most, bool takes_one) {
  const json* given = body.find(name);
  if (given == nullptr) return {};
  const std::string allowed = fmt::format("{}an array of up to {} strings, of 1 to {} bytes each",
                                          takes_one ? "a string, or " : "", most, longest_string);
  const json list = given->is_array() || !takes_one ? *given : json::array({*given});
  if (!list.is_array()) refuse_type(body.full_name(name), allowed, *given);
  if (list.size() > most) refuse_value(body.full_name(name), allowed, *given);
  std::vector<std::string> strings;
  for (const json& one : list) {
    if (!one.is_string()) refuse_type(body.full_name(name), allowed, *given);
    const auto& text = one.get_ref<const std::string&>();
    if (text.empty() || text.size() > longest_string) refuse_value(body.full_name(name), allowed, *given);
    strings.push_back(text);
  }
  return strings;
}

// Reads what ends a text, except the end of a chat's turn.
void read_stop(const fields& body, const request_rules& rules, const espalier::tokenizer& tokenizer,
               espalier::stop_conditions& stop) {
  stop.show_string = false;
  stop.strings = read_strings(body, "stop", most_stop_strings, true);
  if (!body.flag("ignore_eos")) stop.tokens = tokenizer.ends_of_text();
  const json* given = body.find("stop_token_ids");
  if (given == nullptr) return;
  const std::string allowed = fmt::format("an array of up to {} token ids", most_stop_tokens);
  if (!given->is_array()) refuse_type("stop_token_ids", allowed, *given);
  if (given->size() > most_stop_tokens) refuse_value("stop_token_ids", allowed, *given);
  for (const token_id token : reading::tokens_of(*given, "stop_token_ids", rules.vocab_size))
    if (std::find(stop.tokens.begin(), stop.tokens.end(), token) == stop.tokens.end()) stop.tokens.push_back(token);
}

// Makes a chat's answer end where its turn does.
void end_with_turn(const std::string& end, const espalier::tokenizer& tokenizer, espalier::stop_conditions& stop) {
  const token_id token = tokenizer.find(end);
  if (token < 0) {
    if (!end.empty()) stop.strings.push_back(end);
  } else if (std::find(stop.tokens.begin(), stop.tokens.end(), token) == stop.tokens.end()) {
    stop.tokens.push_back(token);
  }
}

void read_sampling(const fields& body, espalier::text_options& options) {
  options.sampling.temperature = static_cast<float>(body.number("temperature", 0, 2, 1));
  options.sampling.top_p = static_cast<float>((std::max)(body.number("top_p", 0, 1, 1), least_top_p));
  options.sampling.top_k =
      static_cast<std::int32_t>((std::max)(body.integer("top_k", -1, 1 << 30, 0), std::int64_t{0}));
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
    const bool is_token = !id.empty() && id.size() < 9 && id.find_first_not_of("0123456789") == std::string::npos &&
                          (id[0] != '0' || id.size() == 1);
    const int token = is_token ? std::stoi(id) : -1;
    const double value = bias.is_number() ? bias.get<double>() : 1000;
    if (token < 0 || token >= vocab_size || !(value >= -100 && value <= 100))
      refuse_value("logit_bias", allowed, *given);
    biases.push_back({token, value});
  }
  return espalier::logit_bias(std::move(biases), vocab_size);
}

// Reads the tokens that alone may be written.
espalier::constrained<token_set> read_allowed_tokens(const fields& body, std::int32_t vocab_size) {
  const json* given = body.find("allowed_token_ids");
  if (given == nullptr) return {};
  constexpr auto allowed = "an array of token ids that is not empty";
  if (!given->is_array() || given->empty()) refuse_type("allowed_token_ids", allowed, *given);
  return espalier::constrained(token_set(reading::tokens_of(*given, "allowed_token_ids", vocab_size)));
}

// Reads the words that may not be written: the tokens of each at the beginning of a text, after a space, and without
// one.
espalier::banned_sequences read_bad_words(const fields& body, const espalier::tokenizer& tokenizer,
                                          std::int32_t vocab_size) {
  std::vector<std::vector<token_id>> sequences;
  for (const std::string& word : read_strings(body, "bad_words", most_bad_words, false)) {
    const auto ban = [&](std::vector<token_id> tokens) {
      const std::string text = tokenizer.decode(tokens);
      const bool is_word = !tokens.empty() && (text == word || text == " " + word);
      if (is_word && std::find(sequences.begin(), sequences.end(), tokens) == sequences.end())
        sequences.push_back(std::move(tokens));
      return is_word;
    };
    bool is_banned = ban(tokenizer.encode(word));
    const std::vector<token_id> line = tokenizer.encode("\n");
    for (const std::string& after : {"\n" + word, "\n " + word}) {
      std::vector<token_id> tokens = tokenizer.encode(after);
      if (tokens.size() <= line.size() || !std::equal(line.begin(), line.end(), tokens.begin())) continue;
      tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(line.size()));
      is_banned = ban(std::move(tokens)) || is_banned;
    }
    if (!is_banned) refuse_value("bad_words", "an array of words that the model's tokens can write", word);
  }
  return espalier::banned_sequences(std::move(sequences), vocab_size);
}

// A rule that a whole text must keep, as a field of the request gives it.
struct given_rule {
  enum class kind { schema, expression, grammar };

  kind what;
  std::string text;
  std::string field;
  espalier::json_schema_options options{};  // of a schema
};

constexpr auto any_object = R"({"type": "object"})";

// The schema in the format of the reply, byte for byte; `text` is the request's body.
std::optional<given_rule> read_response_format(const fields& body, endpoint to, std::string_view text) {
  const json* given = body.find("response_format");
  constexpr auto allowed =
      "{\"type\": \"text\"}, {\"type\": \"json_object\"}, {\"type\": \"json_object\", \"schema\": ...} or {\"type\": "
      "\"json_schema\", \"json_schema\": {\"schema\": ...}}";
  if (given == nullptr) return {};
  if (!given->is_object()) refuse_type("response_format", allowed, *given);
  check_fields(*given, "response_format", format_fields, to);
  const fields format(*given, "response_format");
  const json type = given->value("type", json());
  const json *schema = format.find("schema"), *named = format.find("json_schema");
  const std::string_view inside = member_text(text, "response_format");
  if (type == "text" && schema == nullptr && named == nullptr) return {};
  if (type == "json_object" && named == nullptr) {
    return given_rule{given_rule::kind::schema, std::string(schema ? member_text(inside, "schema") : any_object),
                      "response_format"};
  }
  if (type != "json_schema" || schema != nullptr || named == nullptr || !named->is_object() ||
      !named->contains("schema"))
    refuse_value("response_format", allowed, *given);
  check_fields(*named, "response_format.json_schema", schema_fields, to);
  return given_rule{given_rule::kind::schema, std::string(member_text(member_text(inside, "json_schema"), "schema")),
                    "response_format"};
}

// The expression of one of several strings.
std::string one_of(const std::vector<std::string>& choices) {
  std::string expression;
  for (const std::string& choice : choices) {
    if (!expression.empty()) expression += '|';
    for (const char c : choice) {
      const bool is_sign =
          (c > ' ' && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || (c > 'z' && c < '\x7f');
      if (is_sign) expression += '\\';
      expression += c;
    }
  }
  return expression;
}

// Names of fields that give rules.
struct rule_names {
  std::vector<const char*> schemas, expressions, choices, grammars;
};

// Adds the rules that an object's fields of these names give. `text` is the object's.
void read_rules(const fields& from, std::string_view text, const rule_names& names, std::vector<given_rule>& rules) {
  using kind = given_rule::kind;
  for (const char* name : names.schemas) {
    const json* given = from.find(name);
    if (given == nullptr) continue;
    const bool is_written = given->is_string();  // JSON within JSON
    if (!is_written && !given->is_object())
      refuse_type(from.full_name(name), "a JSON schema: an object, or its text in a string", *given);
    rules.push_back({kind::schema, is_written ? given->get<std::string>() : std::string(member_text(text, name)),
                     from.full_name(name)});
  }
  const auto read_text = [&](const char* name, kind what, const char* allowed) {
    const json* given = from.find(name);
    if (given == nullptr) return;
    if (!given->is_string()) refuse_type(from.full_name(name), allowed, *given);
    if (*given == "") refuse_value(from.full_name(name), std::string(allowed) + ", not empty", *given);
    rules.push_back({what, given->get<std::string>(), from.full_name(name)});
  };
  for (const char* name : names.expressions)
    read_text(name, kind::expression, "a string, a regular expression");
  for (const char* name : names.choices) {
    if (from.find(name) == nullptr) continue;
    const std::vector<std::string> choices = read_strings(from, name, most_choices, false);
    if (choices.empty()) refuse_value(from.full_name(name), "an array of strings that is not empty", json::array());
    rules.push_back({kind::expression, one_of(choices), from.full_name(name)});
  }
  for (const char* name : names.grammars) {
    read_text(name, kind::grammar, "a string, a grammar in EBNF");
#if !defined(EXAMPLES_HAS_XGRAMMAR)
    if (from.find(name) != nullptr) {
      refuse(from.full_name(name),
             from.full_name(name) + " needs xgrammar, without which this server was built: it must be left out.",
             "unsupported_value");
    }
#endif
  }
}

// The rule that the text must keep; none: any text. `text` is the request's body.
std::optional<given_rule> read_rule(const fields& body, endpoint to, std::string_view text,
                                    const std::optional<tool_use>& tools) {
  std::vector<given_rule> rules;
  if (auto format = read_response_format(body, to, text)) rules.push_back(*std::move(format));
  read_rules(body, text,
             {{"json_schema", "guided_json"}, {"guided_regex"}, {"guided_choice"}, {"guided_grammar", "grammar"}},
             rules);
  if (const json* given = body.find("structured_outputs")) {
    if (!given->is_object()) refuse_type("structured_outputs", "an object with json, regex, choice or grammar", *given);
    check_fields(*given, "structured_outputs", structured_fields, to);
    const fields inside(*given, "structured_outputs");
    const std::size_t n_before = rules.size();
    read_rules(inside, member_text(text, "structured_outputs"), {{"json"}, {"regex"}, {"choice"}, {"grammar"}}, rules);
    if (inside.flag("json_object"))
      rules.push_back({given_rule::kind::schema, any_object, inside.full_name("json_object")});
    if (rules.size() == n_before) {
      refuse_value("structured_outputs", "an object with one of json, regex, choice, grammar and json_object", *given);
    }
  }
  for (const char* name : {"ignore_formats", "json_lines"}) {
    const bool has_schema = !rules.empty() && rules[0].what == given_rule::kind::schema;
    if (body.flag(name) && !has_schema) refuse(name, std::string(name) + " needs a JSON schema.", "invalid_value");
  }
  if (tools && !rules.empty()) {
    refuse(rules[0].field,
           fmt::format("{} does not go with tools, unless tool_choice is none: one of them must be left out.",
                       rules[0].field),
           "invalid_value");
  }
  if (tools && tools->must_call) rules.push_back({given_rule::kind::schema, tools->schema(), "tool_choice"});
  if (rules.empty()) return {};
  if (rules.size() > 1) {
    refuse(rules[1].field,
           fmt::format("{} does not go with {}: one of them must be left out.", rules[1].field, rules[0].field),
           "invalid_value");
  }
  if (body.flag("ignore_eos")) {
    refuse("ignore_eos",
           fmt::format("ignore_eos does not go with {}, whose text has an end: one of them must be left out.",
                       rules[0].field),
           "invalid_value");
  }
  rules[0].options = {.ignore_other_formats = body.flag("ignore_formats"), .allow_lines = body.flag("json_lines")};
  return std::move(rules.front());
}

// A text that no other rule has: its kind, its options, and what it says.
std::string key_of(const given_rule& rule) {
  return fmt::format("{} {:d} {:d} {}", static_cast<int>(rule.what), rule.options.ignore_other_formats,
                     rule.options.allow_lines, rule.text);
}

// Compiles a rule, where a keeper is given on one of its threads.
std::shared_ptr<rule_use> use_of(const given_rule& rule, const request_rules& rules,
                                 const espalier::tokenizer& tokenizer) {
  const auto make = [&] {
    const auto vocabulary = rules.vocabulary ? *rules.vocabulary : models::vocabulary_of(tokenizer);
#if defined(EXAMPLES_HAS_XGRAMMAR)
    if (rule.what == given_rule::kind::grammar) return models::text_rule(espalier::ebnf_grammar(rule.text, vocabulary));
#endif
    if (rule.what == given_rule::kind::expression)
      return models::text_rule(espalier::regular_expression(rule.text, vocabulary));
    return models::text_rule(espalier::json_schema(rule.text, vocabulary, rule.options));
  };
  try {
    if (rules.keeper != nullptr) return rules.keeper->compile(key_of(rule), make);
    constexpr espalier::automaton_limits limits;
    return std::make_shared<rule_use>(std::make_shared<kept_rule>(make()), limits.bytes, limits.steps);
  } catch (const espalier::input_error& error) {
    refuse(rule.field, error.what(), "invalid_value");
  } catch (const rule_error& error) {
    throw api_error(422, error.what(), rule.field, "rule_too_large");
  }
}

// Forbids what ends a text until it has so many tokens.
espalier::minimum_length read_minimum(const fields& body, const request_rules& rules,
                                      const espalier::stop_conditions& stop) {
  const auto length = static_cast<std::int32_t>(body.integer("min_tokens", 0, stop.max_tokens, 0));
  if (length == 0) return {};
  if (!stop.strings.empty()) {
    refuse(
        "min_tokens",
        fmt::format("min_tokens does not go with texts that end at a string, as this one ends at {}: it must be left "
                    "out.",
                    shown(stop.strings.front())),
        "invalid_value");
  }
  std::vector<token_id> ends = stop.tokens;
  std::erase_if(ends, [&](token_id end) { return end >= rules.vocab_size; });  // of no row of the model
  return espalier::minimum_length(length, std::move(ends), rules.vocab_size);
}

// Reads the processor of a text that ends where `stop` says, and its rule.
void read_processor(const fields& body, endpoint to, std::string_view text, const request_rules& rules,
                    const espalier::tokenizer& tokenizer, const std::optional<tool_use>& tools, text_request& texts) {
  const espalier::penalties penalties({.repetition = body.number("repetition_penalty", 0.01, 100, 1),
                                       .presence = body.number("presence_penalty", -2, 2, 0),
                                       .frequency = body.number("frequency_penalty", -2, 2, 0)});
  const std::optional<given_rule> rule = read_rule(body, to, text, tools);
  if (rule) {
    texts.rule = use_of(*rule, rules, tokenizer);
    texts.rule_field = rule->field;
  }
  texts.process = text_processor(
      read_logit_bias(body, rules.vocab_size), penalties, read_allowed_tokens(body, rules.vocab_size),
      read_bad_words(body, tokenizer, rules.vocab_size), read_minimum(body, rules, texts.stop),
      texts.rule ? espalier::constrained(served_rule(texts.rule)) : espalier::constrained<served_rule>());
}

std::int32_t read_max_tokens(const fields& body, endpoint from) {
  constexpr std::int32_t most = (std::numeric_limits<std::int32_t>::max)();
  std::int64_t max_tokens = from == endpoint::completions ? 16 : most;
  std::string given;
  for (const auto& [name, low] : {std::pair{"max_tokens", 0}, {"max_completion_tokens", 0}, {"n_predict", -1}}) {
    if (body.find(name) == nullptr) continue;
    std::int64_t n = body.integer(name, low, most, 0);
    if (n < 0) n = most;  // llama.cpp's name for no limit
    if (!given.empty() && n != max_tokens)
      refuse(name, fmt::format("{} and {} differ: one of them must be left out.", name, given), "invalid_value");
    given = name;
    max_tokens = n;
  }
  return static_cast<std::int32_t>(max_tokens);
}

// Reads how many texts are written after a prompt, and how many of them the reply has.
void read_numbers(const fields& body, const request_rules& rules, api_request& request) {
  request.n = static_cast<std::int32_t>(body.integer("n", 1, rules.most_texts, 1));
  request.texts.n = static_cast<std::int32_t>(body.integer("best_of", 1, rules.most_texts, request.n));
  if (request.texts.n < request.n) {
    refuse("best_of", fmt::format("best_of must be at least n, which is {}, but is {}.", request.n, request.texts.n),
           "invalid_value");
  }
  if (request.texts.n > request.n && request.stream)
    refuse("best_of", "best_of does not go with \"stream\": true, unless it is n: the best are known at the end.",
           "invalid_value");
  // The best are found by their log-probabilities.
  auto& log_probs = request.texts.options.log_probs;
  request.shows_log_probs = log_probs >= 0;
  if (request.texts.n > request.n) log_probs = (std::max)(log_probs, 0);
}

}  // namespace

api_request read_request(endpoint from, std::string_view text, const request_rules& rules,
                         const espalier::tokenizer& tokenizer) {
  const json object = parse(text);
  const fields body(object);
  check_model(body, rules.model);
  check_fields(object, "", request_fields, from);

  api_request request;
  request.from = from;
  text_request& texts = request.texts;
  texts.stop.max_tokens = read_max_tokens(body, from);
  read_stop(body, rules, tokenizer, texts.stop);
  read_sampling(body, texts.options);
  read_log_probs(body, from, texts.options);
  request.stream = body.flag("stream");
  read_numbers(body, rules, request);

  if (const json* options = body.find("stream_options")) {
    if (!options->is_object()) refuse_type("stream_options", "an object", *options);
    if (!request.stream) refuse("stream_options", "stream_options goes with \"stream\": true only.", "invalid_value");
    check_fields(*options, "stream_options", stream_fields, from);
    request.include_usage = fields(*options, "stream_options").flag("include_usage");
  }

  if (from == endpoint::chat) {
    if (const json* messages = body.find("messages")) check_bytes(bytes_of(*messages), "messages", rules);
    chat_prompt chat = read_chat(body, text, rules.chat, tokenizer, rules.calls);
    texts.prompts.push_back(std::move(chat.tokens));
    request.tools = std::move(chat.tools);
    texts.tells_tokens = request.tools.has_value();
    if (!body.flag("ignore_eos")) end_with_turn(rules.chat.end_of_turn(), tokenizer, texts.stop);
  } else {
    read_prompts(body, rules, tokenizer, request);
    texts.options.prompt_log_probs = request.echo && request.shows_log_probs;
  }
  const char* prompt = from == endpoint::chat ? "messages" : "prompt";
  if (texts.n_texts() > rules.most_texts) {
    refuse(prompt,
           fmt::format("The request asks for {} texts after each of {} prompts, but one request may ask for {} "
                       "texts at most.",
                       texts.n, texts.prompts.size(), rules.most_texts),
           "invalid_value");
  }
  for (const auto& tokens : texts.prompts) {
    const auto n_tokens = static_cast<std::int64_t>(tokens.size());
    if (n_tokens < rules.context + (texts.stop.max_tokens == 0 ? 1 : 0)) continue;
    refuse_length(prompt, fmt::format("{} tokens", n_tokens), rules.context);
  }
  read_processor(body, from, text, rules, tokenizer, request.tools, texts);
  return request;
}

}  // namespace serve
