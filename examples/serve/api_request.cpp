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
#include "espalier/constraint/regular_expression.hpp"
#include "espalier/constraint/schema/json_schema.hpp"
#include "espalier/core/util/nearest_name.hpp"
#include "member_text.hpp"

namespace serve {

namespace {

using espalier::token_id;
using nlohmann::json;

constexpr std::size_t most_stop_strings = 16, most_bad_words = 256, longest_string = 256;  // strings in bytes
constexpr std::size_t most_stop_tokens = 256, most_choices = 1024;
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

// Refuses a field that is not known: what it asks for would be passed over.
[[noreturn]] void refuse_name(const std::string& name, const std::string& within, std::span<const known_field> known,
                              endpoint to) {
  constexpr std::size_t longest_name = 64;  // bytes of a name that is compared with others
  const std::string shown_name = shown(name);
  const std::string param = within.empty() ? name : within;
  const std::string field = within.empty() ? "field" : "member of " + within;
  std::vector<std::string_view> names;
  for (const known_field& one : known) {
    if (one.name == name) {
      refuse(param,
             fmt::format("{} is a field of {} alone, not of {}.", name,
                         to == endpoint::chat ? "/v1/completions" : "/v1/chat/completions",
                         to == endpoint::chat ? "/v1/chat/completions" : "/v1/completions"),
             "unknown_parameter");
    }
    if (one.belongs_to(to)) names.push_back(one.name);
  }
  const std::string_view nearest =
      name.size() > longest_name ? std::string_view() : espalier::nearest_name(name, names);
  refuse(name.size() > longest_name ? within : param,
         fmt::format("There is no {} {}", field, shown_name) +
             (nearest.empty() ? std::string(".") : fmt::format("; the nearest name is \"{}\".", nearest)),
         "unknown_parameter");
}

// Checks the names of all fields, and the values of those that are not supported.
void check_fields(const json& object, const std::string& within, std::span<const known_field> known, endpoint to) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_null()) continue;
    const auto found = std::find_if(known.begin(), known.end(), [&, &name = name](const known_field& one) {
      return one.name == name && one.belongs_to(to);
    });
    if (found == known.end()) refuse_name(name, within, known, to);
    if (found->is != known_field::use::unsupported) continue;
    std::string allowed;
    bool is_neutral = false;
    for (const json& neutral : json::parse(found->neutral)) {
      is_neutral = is_neutral || neutral == value;
      allowed += neutral.dump() + " or ";
    }
    if (is_neutral) continue;
    const std::string full_name = within.empty() ? name : within + "." + name;
    refuse(full_name,
           fmt::format("{} is not supported: it must be {}left out, but is {}.", full_name, allowed, shown(value)),
           "unsupported_value");
  }
}

std::vector<token_id> tokens_of(const json& list, const char* field, std::int32_t vocab_size) {
  std::vector<token_id> tokens;
  tokens.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const json& token = list[i];
    const std::string name = fmt::format("{}[{}]", field, i);
    const std::string allowed = fmt::format("a token id from 0 to {}", vocab_size - 1);
    if (!token.is_number_integer()) refuse_type(name, allowed, token);
    if (token < 0 || token >= vocab_size) refuse_value(name, allowed, token);
    tokens.push_back(token.get<token_id>());
  }
  return tokens;
}

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

std::vector<token_id> read_prompt(const fields& body, const request_rules& rules,
                                  const espalier::tokenizer& tokenizer) {
  const json* prompt = body.find("prompt");
  constexpr auto allowed = "a string, or an array of token ids that is not empty";
  if (prompt == nullptr) {
    refuse("prompt", fmt::format("prompt is missing: it must be {}.", allowed), "missing_required_parameter");
  }
  if (prompt->is_array() && prompt->size() == 1 && prompt->front().is_string()) prompt = &prompt->front();
  if (prompt->is_string()) {
    const auto& text = prompt->get_ref<const std::string&>();
    check_bytes(text.size(), "prompt", rules);
    return tokenizer.encode_prompt(text);
  }
  if (!prompt->is_array() || prompt->empty()) refuse_type("prompt", allowed, *prompt);
  if (!prompt->front().is_number()) refuse_type("prompt", std::string(allowed) + ", one prompt a request", *prompt);
  return tokens_of(*prompt, "prompt", rules.vocab_size);
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

nlohmann::ordered_json read_messages(const fields& body) {
  const json* messages = body.find("messages");
  constexpr auto allowed = "an array of {\"role\": ..., \"content\": ...} that is not empty";
  if (messages == nullptr)
    refuse("messages", fmt::format("messages is missing: it must be {}.", allowed), "missing_required_parameter");
  if (!messages->is_array() || messages->empty()) refuse_type("messages", allowed, *messages);
  auto read = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < messages->size(); ++i) {
    const json& message = (*messages)[i];
    const std::string name = fmt::format("messages[{}]", i);
    if (!message.is_object()) refuse_type(name, "an object with role and content", message);
    const json role = message.value("role", json());
    if (role != "system" && role != "developer" && role != "user" && role != "assistant")
      refuse_value(name + ".role", "system, developer, user or assistant", role);
    check_fields(message, name, message_fields, endpoint::chat);
    read.push_back(
        {{"role", role == "developer" ? "system" : role.get<std::string>()}, {"content", content_of(message, name)}});
  }
  return read;
}

// Reads the messages of a chat into a prompt. The answer ends where its turn ends, unless ends are ignored.
void read_chat(const fields& body, const request_rules& rules, const espalier::tokenizer& tokenizer,
               text_request& texts) {
  const espalier::chat_template& chat = rules.chat;
  const espalier::chat_input input{.messages = read_messages(body)};
  check_bytes(input.messages.dump().size(), "messages", rules);
  try {
    texts.prompt = chat.tokens(tokenizer, input);
  } catch (const espalier::input_error& error) {
    refuse("messages", std::string("messages cannot be read: ") + error.what(), "invalid_value");
  }
  if (body.flag("ignore_eos")) return;
  const std::string& end = chat.end_of_turn();
  const token_id token = tokenizer.find(end);
  if (token >= 0) {
    if (std::find(texts.stop.tokens.begin(), texts.stop.tokens.end(), token) == texts.stop.tokens.end())
      texts.stop.tokens.push_back(token);
  } else if (!end.empty()) {
    texts.stop.strings.push_back(end);
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
  for (const token_id token : tokens_of(*given, "stop_token_ids", rules.vocab_size))
    if (std::find(stop.tokens.begin(), stop.tokens.end(), token) == stop.tokens.end()) stop.tokens.push_back(token);
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
    const bool is_token = !id.empty() && id.size() < 9 && id.find_first_not_of("0123456789") == std::string::npos;
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
  return espalier::constrained(token_set(tokens_of(*given, "allowed_token_ids", vocab_size)));
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
std::optional<given_rule> read_rule(const fields& body, endpoint to, std::string_view text) {
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
    if (rules.keeper != nullptr)
      return rules.keeper->compile(key_of(rule), make);
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
                    const espalier::tokenizer& tokenizer, text_request& texts) {
  const espalier::penalties penalties({.repetition = body.number("repetition_penalty", 0.01, 100, 1),
                                       .presence = body.number("presence_penalty", -2, 2, 0),
                                       .frequency = body.number("frequency_penalty", -2, 2, 0)});
  const std::optional<given_rule> rule = read_rule(body, to, text);
  if (rule) texts.rule = use_of(*rule, rules, tokenizer);
  texts.process = text_processor(
      read_logit_bias(body, rules.vocab_size), penalties, read_allowed_tokens(body, rules.vocab_size),
      read_bad_words(body, tokenizer, rules.vocab_size), read_minimum(body, rules, texts.stop),
      texts.rule ? espalier::constrained(served_rule(texts.rule)) : espalier::constrained<served_rule>());
}

std::int32_t read_max_tokens(const fields& body, endpoint from) {
  constexpr std::int32_t most = (std::numeric_limits<std::int32_t>::max)();
  const std::int64_t otherwise = from == endpoint::completions ? 16 : most;
  const std::int64_t max_tokens = body.integer("max_tokens", 1, most, otherwise);
  const std::int64_t max_completion_tokens = body.integer("max_completion_tokens", 1, most, max_tokens);
  if (body.find("max_tokens") != nullptr && max_completion_tokens != max_tokens) {
    refuse("max_completion_tokens", "max_completion_tokens and max_tokens differ: one of them must be left out.",
           "invalid_value");
  }
  return static_cast<std::int32_t>(max_completion_tokens);
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
  texts.n = static_cast<std::int32_t>(body.integer("n", 1, rules.most_texts, 1));
  if (body.integer("best_of", 1, rules.most_texts, texts.n) != texts.n)
    refuse("best_of", "best_of is not supported: it must be n or left out.", "unsupported_value");

  request.stream = body.flag("stream");
  if (const json* options = body.find("stream_options")) {
    if (!options->is_object()) refuse_type("stream_options", "an object", *options);
    if (!request.stream) refuse("stream_options", "stream_options goes with \"stream\": true only.", "invalid_value");
    check_fields(*options, "stream_options", stream_fields, from);
    request.include_usage = fields(*options, "stream_options").flag("include_usage");
  }

  if (from == endpoint::chat) {
    read_chat(body, rules, tokenizer, texts);
  } else {
    texts.prompt = read_prompt(body, rules, tokenizer);
  }
  const auto n_tokens = static_cast<std::int64_t>(texts.prompt.size());
  if (n_tokens >= rules.context) {
    refuse_length(from == endpoint::chat ? "messages" : "prompt", fmt::format("{} tokens", n_tokens), rules.context);
  }
  read_processor(body, from, text, rules, tokenizer, texts);
  return request;
}

}  // namespace serve
