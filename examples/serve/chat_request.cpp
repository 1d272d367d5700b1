// SPDX-License-Identifier: BSL-1.0
#include "chat_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "espalier/core/error.hpp"
#include "member_text.hpp"

namespace serve {

namespace {

using namespace reading;
using espalier::chat_end;
using espalier::chat_input;
using nlohmann::ordered_json;

constexpr std::size_t most_tools = 128, longest_name = 64;  // bytes

// The content of a message: a string, or parts of text; null where there is none and a message may be without.
ordered_json read_content(const json& message, const std::string& name, bool may_lack) {
  constexpr auto allowed = "a string, or an array of {\"type\": \"text\", \"text\": ...}";
  const std::string field = name + ".content";
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    if (may_lack) return nullptr;
    refuse(field, fmt::format("{} is missing: it must be {}.", field, allowed), "missing_required_parameter");
  }
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) refuse_type(field, allowed, *content);
  std::string text;
  for (std::size_t i = 0; i < content->size(); ++i) {
    const json& part = (*content)[i];
    const std::string place = fmt::format("{}[{}]", field, i);
    const json type = part.is_object() ? part.value("type", json()) : json();
    if (type.is_string() && type != "text") {
      refuse(place,
             fmt::format("{} is a part of type {}, but this model reads text alone: parts must be {{\"type\": "
                         "\"text\", \"text\": ...}}.",
                         place, shown(type)),
             "unsupported_value");
    }
    const bool is_text = type == "text" && part.contains("text") && part["text"].is_string();
    if (!is_text) refuse_value(place, "an object {\"type\": \"text\", \"text\": ...}", part);
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

// The calls of a message of the assistant.
ordered_json read_calls(const json& given, const std::string& name) {
  constexpr auto allowed =
      "an array of {\"id\": ..., \"type\": \"function\", \"function\": {\"name\": ..., \"arguments\": ...}}";
  if (!given.is_array()) refuse_type(name, allowed, given);
  auto calls = ordered_json::array();
  for (std::size_t i = 0; i < given.size(); ++i) {
    const json& call = given[i];
    const std::string place = fmt::format("{}[{}]", name, i);
    if (!call.is_object()) refuse_type(place, allowed, given);
    check_fields(call, place, call_fields, endpoint::chat);
    if (call.value("type", json("function")) != "function") refuse_value(place + ".type", "function", call["type"]);
    const json function = call.value("function", json());
    if (!function.is_object()) refuse_type(place + ".function", "an object with name and arguments", function);
    check_fields(function, place + ".function", called_fields, endpoint::chat);
    const json called = function.value("name", json()), arguments = function.value("arguments", json());
    if (!called.is_string()) refuse_type(place + ".function.name", "a string", called);
    auto object = arguments.is_string() ? ordered_json::parse(arguments.get<std::string>(), nullptr, false)
                                        : ordered_json(ordered_json::value_t::discarded);
    if (!object.is_object())
      refuse_value(place + ".function.arguments", "a string, the text of a JSON object", arguments);
    const json id = call.value("id", json());
    if (!id.is_string()) refuse_type(place + ".id", "a string", id);
    calls.push_back({{"id", id.get<std::string>()},
                     {"type", "function"},
                     {"function", {{"name", called.get<std::string>()}, {"arguments", std::move(object)}}}});
  }
  return calls;
}

ordered_json read_messages(const fields& body) {
  const json* messages = body.find("messages");
  constexpr auto allowed = "an array of {\"role\": ..., \"content\": ...} that is not empty";
  if (messages == nullptr)
    refuse("messages", fmt::format("messages is missing: it must be {}.", allowed), "missing_required_parameter");
  if (!messages->is_array() || messages->empty()) refuse_type("messages", allowed, *messages);
  auto read = ordered_json::array();
  for (std::size_t i = 0; i < messages->size(); ++i) {
    const json& message = (*messages)[i];
    const std::string name = fmt::format("messages[{}]", i);
    if (!message.is_object()) refuse_type(name, "an object with role and content", message);
    const json role = message.value("role", json());
    if (role != "system" && role != "developer" && role != "user" && role != "assistant" && role != "tool")
      refuse_value(name + ".role", "system, developer, user, assistant or tool", role);
    check_fields(message, name, message_fields, endpoint::chat);
    ordered_json one = {{"role", role == "developer" ? "system" : role.get<std::string>()},
                        {"content", read_content(message, name, role == "assistant")}};
    const fields inside(message, name);
    for (const char* member : {"name", "tool_call_id"}) {
      const json* given = inside.find(member);
      if (given == nullptr) continue;
      if (!given->is_string()) refuse_type(inside.full_name(member), "a string", *given);
      one[member] = given->get<std::string>();
    }
    const json* calls = inside.find("tool_calls");
    if (calls != nullptr && role != "assistant" && !calls->empty())
      refuse(inside.full_name("tool_calls"),
             fmt::format("{} belongs to messages of the assistant alone.", inside.full_name("tool_calls")),
             "invalid_value");
    if (calls != nullptr && role == "assistant") {
      one["tool_calls"] = read_calls(*calls, inside.full_name("tool_calls"));
      if (one["tool_calls"].empty()) one.erase("tool_calls");
    }
    if (one["content"].is_null() && !one.contains("tool_calls")) one["content"] = "";
    read.push_back(std::move(one));
  }
  return read;
}

// The functions that may be called, as OpenAI's API has them.
ordered_json read_tools(const fields& body, std::string_view text) {
  const json* given = body.find("tools");
  constexpr auto allowed =
      "an array of {\"type\": \"function\", \"function\": {\"name\": ..., \"description\": ..., \"parameters\": ...}}";
  if (given == nullptr) return ordered_json::array();
  if (!given->is_array()) refuse_type("tools", allowed, *given);
  if (given->size() > most_tools) refuse_value("tools", fmt::format("an array of up to {} tools", most_tools), *given);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < given->size(); ++i) {
    const json& one = (*given)[i];
    const std::string place = fmt::format("tools[{}]", i);
    if (!one.is_object()) refuse_type(place, "an object with type and function", one);
    const json type = one.value("type", json());
    if (type != "function") refuse_value(place + ".type", "function", type);
    check_fields(one, place, tool_fields, endpoint::chat);
    const json function = one.value("function", json());
    if (!function.is_object())
      refuse_type(place + ".function", "an object with name, description and parameters", function);
    check_fields(function, place + ".function", function_fields, endpoint::chat);
    const json name = function.value("name", json());
    const auto is_sign = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '-' ||
             c == '.';
    };
    const bool is_name =
        name.is_string() && !name.get_ref<const std::string&>().empty() &&
        name.get_ref<const std::string&>().size() <= longest_name &&
        std::all_of(name.get_ref<const std::string&>().begin(), name.get_ref<const std::string&>().end(), is_sign);
    if (!is_name) {
      refuse_value(place + ".function.name",
                   fmt::format("up to {} letters, digits, underscores, hyphens and points", longest_name), name);
    }
    if (std::find(names.begin(), names.end(), name) != names.end())
      refuse(place + ".function.name",
             fmt::format("{}.function.name is {}, as is that of another tool.", place, shown(name)), "invalid_value");
    names.push_back(name.get<std::string>());
    const json parameters = function.value("parameters", json());
    if (!parameters.is_null() && !parameters.is_object())
      refuse_type(place + ".function.parameters", "a JSON schema: an object", parameters);
    if (parameters.is_object() && parameters.value("type", json("object")) != "object")
      refuse_value(place + ".function.parameters.type", "object, as arguments have names", parameters["type"]);
  }
  return ordered_json::parse(member_text(text, "tools"));  // with members in the order given
}

// Reads how the functions may be called; none if they may not.
std::optional<tool_use> read_use(const fields& body, const ordered_json& tools, const std::optional<call_form>& form) {
  const json* choice = body.find("tool_choice");
  constexpr auto allowed =
      "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}";
  std::string named;
  if (choice != nullptr && choice->is_object()) {
    const json function = choice->value("function", json());
    const json name = function.is_object() ? function.value("name", json()) : json();
    if (choice->value("type", json()) != "function" || !name.is_string() || choice->size() != 2 || function.size() != 1)
      refuse_value("tool_choice", allowed, *choice);
    named = name.get<std::string>();
  } else if (choice != nullptr && *choice != "none" && *choice != "auto" && *choice != "required") {
    refuse_value("tool_choice", allowed, *choice);
  }
  const bool parallel = body.find("parallel_tool_calls") == nullptr || body.flag("parallel_tool_calls");
  const bool must_call = choice != nullptr && (*choice == "required" || choice->is_object());
  if (tools.empty()) {
    if (must_call) {
      refuse("tool_choice", fmt::format("tool_choice is {}, but there are no tools to call.", shown(*choice)),
             "invalid_value");
    }
    return {};
  }
  if (choice != nullptr && *choice == "none") return {};
  if (!form) {
    refuse("tools",
           "tools is not supported with this model, whose chat template writes calls of functions in a form that "
           "is not known: it must be left out.",
           "unsupported_value");
  }
  tool_use use{.form = *form, .tools = {}, .must_call = must_call, .one_name = !named.empty(), .parallel = parallel};
  for (const ordered_json& one : tools) {
    const ordered_json& function = one["function"];
    const auto parameters = function.find("parameters");
    const bool has_parameters = parameters != function.end() && !parameters->is_null();
    if (!named.empty() && function["name"] != named) continue;
    ordered_json schema = has_parameters ? *parameters : ordered_json{{"additionalProperties", false}};
    if (!schema.contains("$ref")) schema["type"] = "object";
    use.tools.push_back({function["name"].get<std::string>(), std::move(schema)});
  }
  if (use.tools.empty())
    refuse("tool_choice", fmt::format("tool_choice names the function {}, which is not among tools.", shown(named)),
           "invalid_value");
  if (must_call && form->names_before && use.tools.size() > 1) {
    refuse("tool_choice",
           "tool_choice must name a function, or be auto: this model writes the name of a function where no rule can "
           "choose among several.",
           "unsupported_value");
  }
  return use;
}

// Tells functions, calls and results in plain text, for a template that does not read tools.
void tell_tools(chat_input& input) {
  std::string told =
      "You may call these functions. To call one, answer with a JSON object and nothing else: "
      "{\"name\": ..., \"arguments\": {...}}";
  for (const ordered_json& one : input.tools)
    told += "\n" + one["function"].dump();
  auto messages = ordered_json::array();
  std::vector<std::pair<ordered_json, std::string>> called;  // ids of calls, and the names of the functions
  for (ordered_json message : input.messages) {
    if (message.contains("tool_calls")) {
      std::string text = message["content"].is_string() ? message["content"].get<std::string>() : std::string();
      for (const ordered_json& call : message["tool_calls"]) {
        called.emplace_back(call["id"], call["function"]["name"].get<std::string>());
        text += (text.empty() ? "" : "\n") + call["function"].dump();
      }
      message = {{"role", "assistant"}, {"content", text}};
    } else if (message["role"] == "tool") {
      std::string of = message.value("name", std::string());
      for (const auto& [id, name] : called)
        if (message.contains("tool_call_id") && message["tool_call_id"] == id) of = name;
      message = {
          {"role", "user"},
          {"content", "Result" + (of.empty() ? of : " of " + of) + ": " + message["content"].get<std::string>()}};
    }
    messages.push_back(std::move(message));
  }
  if (!input.tools.empty()) {
    if (messages[0]["role"] == "system") {
      messages[0]["content"] = messages[0]["content"].get<std::string>() + "\n\n" + told;
    } else {
      const ordered_json system = {{"role", "system"}, {"content", told}};
      messages.insert(messages.begin(), system);
    }
  }
  input.messages = std::move(messages);
  input.tools = nullptr;
}

// Reads the variables of the template that a request sets.
ordered_json read_variables(const fields& body, std::string_view text, const espalier::chat_template& chat) {
  ordered_json variables;
  const auto set = [&](const std::string& field, const std::string& variable, ordered_json value) {
    if (!chat.reads(variable)) {
      refuse(
          field,
          fmt::format("{} is not supported with this model, whose chat template does not read {}: it must be left out.",
                      field, shown(variable)),
          "unsupported_value");
    }
    variables[variable] = std::move(value);
  };
  if (const json* given = body.find("chat_template_kwargs")) {
    if (!given->is_object()) refuse_type("chat_template_kwargs", "an object", *given);
    for (const char* own : {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"}) {
      if (given->contains(own))
        refuse("chat_template_kwargs",
               fmt::format("chat_template_kwargs must not set {}, which has another field or is the model's.", own),
               "invalid_value");
    }
    const auto ordered = ordered_json::parse(member_text(text, "chat_template_kwargs"));
    for (const auto& [name, value] : ordered.items())
      set("chat_template_kwargs", name, value);
  }
  if (const json* given = body.find("documents")) {
    if (!given->is_array()) refuse_type("documents", "an array", *given);
    if (!given->empty()) set("documents", "documents", ordered_json::parse(member_text(text, "documents")));
  }
  if (const json* given = body.find("reasoning_effort")) {
    if (!given->is_string()) refuse_type("reasoning_effort", "a string", *given);
    set("reasoning_effort", "reasoning_effort", given->get<std::string>());
  }
  return variables;
}

chat_end read_end(const fields& body) {
  const bool continues = body.flag("continue_final_message");
  const json* begins = body.find("add_generation_prompt");
  const bool replies = begins == nullptr ? !continues : body.flag("add_generation_prompt");
  if (continues && replies) {
    refuse("continue_final_message",
           "continue_final_message does not go with add_generation_prompt: one of them must be false or left out.",
           "invalid_value");
  }
  return continues ? chat_end::continued : (replies ? chat_end::reply : chat_end::complete);
}

}  // namespace

chat_prompt read_chat(const fields& body, std::string_view text, const espalier::chat_template& chat,
                      const espalier::tokenizer& tokenizer, const std::optional<call_form>& calls) {
  chat_input input{.messages = read_messages(body),
                   .tools = read_tools(body, text),
                   .variables = read_variables(body, text, chat),
                   .end = read_end(body)};
  chat_prompt read{{}, read_use(body, input.tools, calls)};
  if (!read.tools) input.tools = ordered_json::array();
  if (!chat.reads("tools")) {
    tell_tools(input);
  } else {
    for (ordered_json& message : input.messages) {
      if (!message.contains("tool_calls")) continue;
      if (calls && calls->content_as_text && message["content"].is_null()) message["content"] = "";
      for (ordered_json& call : message["tool_calls"]) {
        ordered_json& arguments = call["function"]["arguments"];
        if (calls && calls->arguments_as_text) arguments = arguments.dump();
      }
    }
  }
  if (input.tools.empty()) input.tools = nullptr;
  try {
    read.tokens = chat.tokens(tokenizer, input);
  } catch (const espalier::input_error& error) {
    refuse("messages", std::string("messages cannot be read: ") + error.what(), "invalid_value");
  }
  if (read.tools && read.tools->must_call) {
    const auto opening = tokenizer.encode_trusted(read.tools->opening());
    read.tokens.insert(read.tokens.end(), opening.begin(), opening.end());
  }
  return read;
}

}  // namespace serve
