// SPDX-License-Identifier: BSL-1.0
#include "../examples/serve/tool_calls.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../examples/serve/api_request.hpp"
#include "catch.hpp"

using nlohmann::json;
using nlohmann::ordered_json;
using serve::call_form;
using serve::call_reader;
using serve::endpoint;
using serve::tool_use;

namespace {

const espalier::tokenizer& tokenizer() {
  static const espalier::tokenizer loaded = espalier::tokenizer::load(SERVE_MODELS "/tokenizer.model");
  return loaded;
}

std::optional<call_form> form_in(const std::string& text, const std::string& end_of_turn = "<|end|>") {
  return call_form::in(text, "FUNCTION", ordered_json{{"KEY", "VALUE"}}, end_of_turn);
}

// The parts of a text that comes in pieces of n bytes; calls as name(arguments).
std::pair<std::string, std::vector<std::string>> parts_of(const tool_use& use, const std::string& text, std::size_t n) {
  call_reader reader(use);
  std::pair<std::string, std::vector<std::string>> found;
  const auto add = [&](const call_reader::parts& parts) {
    found.first += parts.content;
    for (const serve::tool_call& call : parts.calls)
      found.second.push_back(call.name + "(" + call.arguments + ")");
  };
  for (std::size_t at = 0; at < text.size(); at += n)
    add(reader.push(std::string_view(text).substr(at, n)));
  add(reader.finish());
  return found;
}

void check_parts(const tool_use& use, const std::string& text, const std::string& content,
                 const std::vector<std::string>& calls) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{7}, text.size() + 1}) {
    INFO(text << " in pieces of " << n);
    const auto found = parts_of(use, text, n);
    CHECK(found.first == content);
    CHECK(found.second == calls);
  }
}

const std::vector<serve::tool> two_tools = {{"f", {{"type", "object"}}}, {"get.weather", {{"type", "object"}}}};

serve::api_request read(const json& fields) {
  json body = {{"messages", {{{"role", "user"}, {"content", "Hello"}}}}};
  body.update(fields);
  const serve::request_rules rules{.model = "tiny", .context = 600, .vocab_size = 4096, .most_texts = 8};
  return serve::read_request(endpoint::chat, body.dump(), rules, tokenizer());
}

std::string complaint(const json& fields) {
  try {
    (void)read(fields);
  } catch (const serve::api_error& error) {
    CHECK(error.status == 400);
    return error.what();
  }
  return "";
}

json tool_of(const json& function) {
  return {{"type", "function"}, {"function", function}};
}

const json weather =
    tool_of({{"name", "get_weather"},
             {"description", "Tells the weather."},
             {"parameters",
              {{"type", "object"},
               {"properties", {{"city", {{"enum", {"Rome", "Oslo"}}}}, {"days", {{"$ref", "#/$defs/n"}}}}},
               {"required", {"city", "days"}},
               {"additionalProperties", false},
               {"$defs", {{"n", {{"type", "integer"}, {"minimum", 1}, {"maximum", 3}}}}}}}});
const json now = tool_of({{"name", "now"}});

// True if a text that must be a call may be this one.
bool may_write(serve::text_processor process, const std::string& text) {
  std::vector<espalier::token_id> tokens = tokenizer().encode(text);
  tokens.push_back(tokenizer().ends_of_text().front());
  process.begin({});
  for (const espalier::token_id token : tokens) {
    if (!process.allows({}, token)) return false;
    process.commit({&token, 1});
  }
  return true;
}

}  // namespace

TEST_CASE("the form of calls is read from what a chat template writes", "[serve]") {
  const auto hermes =
      form_in("<tool_call>\n{\"name\": \"FUNCTION\", \"arguments\": {\"KEY\": \"VALUE\"}}\n</tool_call><|end|>\n");
  REQUIRE(hermes);
  CHECK(hermes->begin == "<tool_call>\n");
  CHECK(hermes->end == "</tool_call>");
  CHECK(!hermes->is_list);
  CHECK(!hermes->names_before);
  CHECK(hermes->name_key == "name");
  CHECK(hermes->arguments_key == "arguments");

  const auto mistral = form_in(
      "[TOOL_CALLS] [{\"name\": \"FUNCTION\", \"arguments\": {\"KEY\": \"VALUE\"}, \"id\": \"call00000\"}]<|end|>");
  REQUIRE(mistral);
  CHECK(mistral->begin == "[TOOL_CALLS] ");
  CHECK(mistral->end == "");
  CHECK(mistral->is_list);

  const auto llama = form_in("{\"name\": \"FUNCTION\", \"parameters\": {\"KEY\": \"VALUE\"}}<|end|>");
  REQUIRE(llama);
  CHECK(llama->begin == "");
  CHECK(llama->arguments_key == "parameters");

  const auto command = form_in(
      "Action: ```json\n[\n    {\n        \"tool_name\": \"FUNCTION\",\n        \"parameters\": {\"KEY\": "
      "\"VALUE\"}\n    }\n]```<|end|>");
  REQUIRE(command);
  CHECK(command->begin == "Action: ```json\n");
  CHECK(command->end == "```");
  CHECK(command->is_list);
  CHECK(command->name_key == "tool_name");

  const auto tekken = form_in("[TOOL_CALLS]FUNCTION[ARGS]{\"KEY\": \"VALUE\"}</s>", "</s>");
  REQUIRE(tekken);
  CHECK(tekken->names_before);
  CHECK(tekken->begin == "[TOOL_CALLS]");
  CHECK(tekken->middle == "[ARGS]");
  CHECK(tekken->end == "");

  const auto fenced = form_in("<begin>function<sep>FUNCTION\n```json\n{\"KEY\": \"VALUE\"}\n```<over><|end|>");
  REQUIRE(fenced);
  CHECK(fenced->names_before);
  CHECK(fenced->begin == "<begin>function<sep>");
  CHECK(fenced->middle == "\n```json\n");
  CHECK(fenced->end == "```<over>");

  CHECK(!form_in("<function=FUNCTION>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>"));
  CHECK(!form_in("[FUNCTION(KEY=\"VALUE\")]"));
  CHECK(!form_in("FUNCTION {\"KEY\": \"VALUE\"}"));  // nothing tells the name from text
  CHECK(!form_in("{'name': 'FUNCTION', 'arguments': {'KEY': 'VALUE'}}"));
  CHECK(!form_in("I cannot call."));
}

TEST_CASE("calls are parted from the text, however it is cut", "[serve]") {
  const tool_use hermes{.form = {.begin = "<tool_call>\n", .end = "\n</tool_call>"}, .tools = two_tools};
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}{\\\"]\"}}\n</tool_call>";
  const std::string told = "f({\"a\": \"}{\\\"]\"})";
  check_parts(hermes, "No call <tool_ca, or { \"name\" }.", "No call <tool_ca, or { \"name\" }.", {});
  check_parts(hermes, call, "", {told});
  check_parts(hermes, "Well:\n" + call + "\n" + call + "\n", "Well:\n", {told, told});
  check_parts(hermes, call + " and more", "and more", {told});
  check_parts(hermes, "<tool_call>{\"arguments\":{},\"name\":\"get.weather\"}</tool_call>", "", {"get.weather({})"});
  check_parts(hermes, "<tool_call>{\"name\":\"f\"}</tool_call>", "", {"f({})"});
  check_parts(hermes, "<tool_call>[{\"name\":\"f\"}, {\"name\":\"f\",\"arguments\":{\"b\":1}}]</tool_call>", "",
              {"f({})", "f({\"b\":1})"});
  // Text that only looks like a call is content.
  for (const std::string no : {"<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>", "<tool_call>\nf()",
                               "<tool_call>\n{\"name\": \"f\", \"argum", "<tool_call>\n{\"name\": f}\n</tool_call>",
                               "<tool_call>[]", "<tool_call>[1]", "<tool_call>{\"name\":\"f\",\"arguments\":\"{}\"}"})
    check_parts(hermes, no, no, {});
  tool_use one = hermes;
  one.parallel = false;
  check_parts(one, call + "\n" + call, "", {told});

  const tool_use list{.form = {.begin = "[TOOL_CALLS] ", .is_list = true}, .tools = two_tools};
  check_parts(list, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}, \"id\": \"1\"}, {\"name\": \"f\"}]", "",
              {"f({})", "f({})"});

  const tool_use plain{.form = {}, .tools = two_tools};
  check_parts(plain, "  {\"name\": \"f\", \"arguments\": {}}", "", {"f({})"});
  check_parts(plain, "{\"name\": \"f\"}\n{\"name\": \"f\", \"arguments\": {\"c\":2}}", "", {"f({})", "f({\"c\":2})"});
  check_parts(plain, "See {\"name\": \"f\", \"arguments\": {}}", "See {\"name\": \"f\", \"arguments\": {}}", {});
  check_parts(plain, "{\"answer\": 5}", "{\"answer\": 5}", {});
  check_parts(plain, "", "", {});

  const tool_use before{.form = {.begin = "[TOOL_CALLS]", .names_before = true, .middle = "[ARGS]"},
                        .tools = two_tools};
  check_parts(before, "[TOOL_CALLS]get.weather[ARGS]{\"x\": 1}[TOOL_CALLS]f[ARGS]{}", "",
              {"get.weather({\"x\": 1})", "f({})"});
  check_parts(before, "[TOOL_CALLS]h[ARGS]{}", "[TOOL_CALLS]h[ARGS]{}", {});
}

TEST_CASE("a text that must be a call begins after what the prompt has of it", "[serve]") {
  const std::vector<serve::tool> one = {two_tools[0]};
  const tool_use object{.form = {.begin = "<tool_call>\n"}, .tools = one, .must_call = true};
  CHECK(object.opening() == "<tool_call>\n");
  check_parts(object, "{\"name\": \"f\", \"arguments\": {}}", "", {"f({})"});
  check_parts(object, "{\"name\": \"f\", \"arg", "{\"name\": \"f\", \"arg", {});
  const tool_use list{.form = {.begin = "[TOOL_CALLS] ", .is_list = true}, .tools = one, .must_call = true};
  CHECK(list.opening() == "[TOOL_CALLS]");
  CHECK(ordered_json::parse(list.schema())["type"] == "array");
  const tool_use before{
      .form = {.begin = "<b>", .names_before = true, .middle = "[ARGS] "}, .tools = one, .must_call = true};
  CHECK(before.opening() == "<b>f[ARGS]");
  CHECK(ordered_json::parse(before.schema()) == one[0].parameters);
  check_parts(before, "{\"a\": 1}", "", {"f({\"a\": 1})"});
}

TEST_CASE("special tokens of calls are put back where they stand", "[serve]") {
  // Token 1 stands for a mark: it has no bytes of its own.
  const call_form form{.begin = "<b>", .marks = {{1, "<b>"}, {2, "</b>"}}};
  const auto king = tokenizer().encode("king"), dot = tokenizer().encode(".");
  std::vector<espalier::token_id> tokens{1};
  tokens.insert(tokens.end(), king.begin(), king.end());
  tokens.push_back(2);
  tokens.insert(tokens.end(), dot.begin(), dot.end());
  tokens.push_back(1);
  const std::string bytes = tokenizer().decode(tokens);
  const std::string expected = "<b>" + tokenizer().decode(king) + "</b>" + tokenizer().decode(dot) + "<b>";
  CHECK(serve::marked_text(form, tokenizer()).push(bytes, tokens) == expected);
  // Bytes are held back, and shown later.
  serve::marked_text late(form, tokenizer());
  std::string text = late.push("", tokens);
  for (const char c : bytes)
    text += late.push({&c, 1}, {});
  CHECK(text == expected);
}

TEST_CASE("a request for calls is read, and its text held to the functions", "[serve]") {
  const json tools = {weather, now};
  const auto free = read({{"tools", tools}});
  REQUIRE(free.tools);
  CHECK(!free.tools->must_call);
  CHECK(free.texts.tells_tokens);
  CHECK(free.texts.process.idle());
  CHECK(!read({{"tools", tools}, {"tool_choice", "none"}}).tools);
  CHECK(!read({{"tools", json::array()}}).tools);
  CHECK(!read({{"tools", tools}, {"tool_choice", "auto"}, {"parallel_tool_calls", false}}).tools->parallel);
  const std::string prompt = tokenizer().decode(free.texts.prompts.at(0));
  CHECK(prompt.find("\"description\":\"Tells the weather.\",\"name\":\"get_weather\"") != std::string::npos);
  CHECK(prompt.find("Question: Hello") != std::string::npos);
  CHECK(tokenizer().decode(read({{"tools", tools}, {"tool_choice", "none"}}).texts.prompts.at(0)).find("now") ==
        std::string::npos);

  const auto forced = read({{"tools", tools}, {"tool_choice", "required"}});
  CHECK(forced.tools->must_call);
  CHECK(may_write(forced.texts.process, R"({"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}})"));
  CHECK(may_write(forced.texts.process, R"({"name": "now", "arguments": {}})"));
  CHECK(!may_write(forced.texts.process, R"({"name": "get_weather", "arguments": {"city": "Bonn", "days": 2}})"));
  CHECK(!may_write(forced.texts.process, R"({"name": "get_weather", "arguments": {"city": "Oslo", "days": 4}})"));
  CHECK(!may_write(forced.texts.process, R"({"name": "get_weather", "arguments": {}})"));
  CHECK(!may_write(forced.texts.process, "The weather is fine."));
  const auto named = read({{"tools", tools}, {"tool_choice", {{"type", "function"}, {"function", {{"name", "now"}}}}}});
  CHECK(named.tools->one_name);
  CHECK(may_write(named.texts.process, R"({"name": "now", "arguments": {}})"));
  CHECK(!may_write(named.texts.process, R"({"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}})"));

  // Arguments are an object, whatever the schema leaves open.
  for (const json& open : {json::object(), json{{"properties", {{"a", {{"type", "integer"}}}}}}}) {
    const json tool = tool_of({{"name", "f"}, {"parameters", open}});
    const auto object = read({{"tools", {tool}}, {"tool_choice", "required"}});
    CHECK(may_write(object.texts.process, R"({"name": "f", "arguments": {"a": 1}})"));
    CHECK(!may_write(object.texts.process, R"({"name": "f", "arguments": 1})"));
  }
}

TEST_CASE("a conversation with calls and results becomes a prompt", "[serve]") {
  const json call = {
      {"id", "1"}, {"type", "function"}, {"function", {{"name", "now"}, {"arguments", "{\"zone\": \"UTC\"}"}}}};
  const auto request = read({{"messages",
                              {{{"role", "user"}, {"content", "When?"}},
                               {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}},
                               {{"role", "tool"}, {"tool_call_id", "1"}, {"content", "noon"}},
                               {{"role", "assistant"}, {"content", nullptr}},
                               {{"role", "user"}, {"content", "And?"}}}}});
  CHECK(request.texts.prompts.at(0) ==
        tokenizer().encode_prompt(
            "Question: When?\nAnswer: {\"name\":\"now\",\"arguments\":{\"zone\":\"UTC\"}}\nQuestion: "
            "Result of now: noon\nAnswer: \nQuestion: And?\nAnswer:"));
}

TEST_CASE("what is wrong with tools is named", "[serve]") {
  const json tools = {weather, now};
  const json hello = {{"role", "user"}, {"content", "Hello"}};
  CHECK(complaint({{"tools", 5}}).find("tools must be an array of") == 0);
  CHECK(complaint({{"tools", {{{"type", "custom"}}}}}) == "tools[0].type must be function, but is \"custom\".");
  CHECK(complaint({{"tools", {{{"type", "function"}}}}}).find("tools[0].function must be an object") == 0);
  CHECK(complaint({{"tools", {tool_of({{"name", "a b"}})}}}).find("tools[0].function.name must be up to 64 letters") ==
        0);
  CHECK(complaint({{"tools", {now, now}}}) == "tools[1].function.name is \"now\", as is that of another tool.");
  CHECK(complaint({{"tools", {tool_of({{"name", "a"}, {"parameter", 1}})}}}) ==
        "There is no member of tools[0].function \"parameter\"; the nearest name is \"parameters\".");
  CHECK(complaint({{"tools", {tool_of({{"name", "a"}, {"parameters", 1}})}}}).find("a JSON schema") !=
        std::string::npos);
  CHECK(complaint(
            {{"tools", {tool_of({{"name", "a"}, {"parameters", {{"type", "text"}}}})}}, {"tool_choice", "required"}})
            .find("tools[0].function.parameters.type must be object") == 0);
  CHECK(complaint({{"tool_choice", "required"}}) == "tool_choice is \"required\", but there are no tools to call.");
  CHECK(complaint({{"tools", tools}, {"tool_choice", "any"}}).find("tool_choice must be \"none\", \"auto\"") == 0);
  CHECK(complaint({{"tools", tools}, {"tool_choice", {{"type", "allowed_tools"}}}}).find("tool_choice must be") == 0);
  CHECK(complaint({{"tools", tools}, {"tool_choice", {{"type", "function"}, {"function", {{"name", "then"}}}}}}) ==
        "tool_choice names the function \"then\", which is not among tools.");
  CHECK(complaint({{"tools", tools}, {"response_format", {{"type", "json_object"}}}}) ==
        "response_format does not go with tools, unless tool_choice is none: one of them must be left out.");
  CHECK(complaint({{"tools", tools}, {"tool_choice", "none"}, {"response_format", {{"type", "json_object"}}}}) == "");
  CHECK(complaint({{"tools", tools}, {"tool_choice", "required"}, {"ignore_eos", true}}) != "");
  CHECK(complaint({{"parallel_tool_calls", 1}, {"tools", tools}}) ==
        "parallel_tool_calls must be true or false, but is 1.");
  const auto answered = [&](const json& calls) {
    return complaint({{"messages", {hello, {{"role", "assistant"}, {"tool_calls", calls}}, hello}}});
  };
  CHECK(answered({{{"id", "1"}, {"function", {{"name", "f"}, {"arguments", "[1]"}}}}}) ==
        "messages[1].tool_calls[0].function.arguments must be a string, the text of a JSON object, but is \"[1]\".");
  CHECK(answered({{{"id", "1"}, {"function", {{"name", "f"}, {"arguments", {{"a", 1}}}}}}}) != "");
  CHECK(answered({{{"id", "1"}, {"function", {{"arguments", "{}"}}}}}) ==
        "messages[1].tool_calls[0].function.name must be a string, but is null.");
  CHECK(answered({{{"function", {{"name", "f"}, {"arguments", "{}"}}}}}) ==
        "messages[1].tool_calls[0].id must be a string, but is null.");
  CHECK(answered(json::array()) == "");
  CHECK(complaint({{"messages", {{{"role", "user"}, {"content", "a"}, {"tool_calls", {1}}}}}}) ==
        "messages[0].tool_calls belongs to messages of the assistant alone.");
  CHECK(complaint({{"messages", {{{"role", "tool"}, {"content", nullptr}}}}}).find("messages[0].content is missing") ==
        0);
  CHECK(complaint({{"messages", {{{"role", "function"}, {"content", "a"}}}}}) != "");
  CHECK(complaint({{"chat_template_kwargs", {{"enable_thinking", false}}}}) ==
        "chat_template_kwargs is not supported with this model, whose chat template does not read \"enable_thinking\": "
        "it must be left out.");
  CHECK(complaint({{"chat_template_kwargs", {{"messages", 1}}}}) != "");
  CHECK(complaint({{"chat_template_kwargs", json::object()}}) == "");
  CHECK(complaint({{"documents", {{{"text", "a"}}}}}).find("does not read \"documents\"") != std::string::npos);
  CHECK(complaint({{"reasoning_effort", "low"}}).find("does not read \"reasoning_effort\"") != std::string::npos);
  CHECK(complaint({{"continue_final_message", true}, {"add_generation_prompt", true}}).find("does not go with") !=
        std::string::npos);
}

TEST_CASE("a form that is not known, or cannot choose among functions, is refused", "[serve]") {
  json body = {{"messages", {{{"role", "user"}, {"content", "Hello"}}}}, {"tools", {weather, now}}};
  serve::request_rules rules{.model = "tiny", .context = 600, .vocab_size = 4096, .most_texts = 8};
  const auto message = [&] {
    try {
      (void)serve::read_request(endpoint::chat, body.dump(), rules, tokenizer());
    } catch (const serve::api_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  rules.calls.reset();
  CHECK(message().find("tools is not supported with this model") == 0);
  rules.calls = call_form{.begin = "[CALL]", .names_before = true, .middle = "[ARGS]"};
  CHECK(message() == "");
  body["tool_choice"] = "required";
  CHECK(message().find("tool_choice must name a function, or be auto") == 0);
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "now"}}}};
  CHECK(message() == "");
}
