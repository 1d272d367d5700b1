// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/tokenizer/chat_template.hpp"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../../raises.hpp"
#include "catch.hpp"

using espalier::chat_end;
using espalier::chat_input;
using espalier::chat_template;
using espalier::input_error;
using espalier::model_error;
using espalier::prompt_piece;
using nlohmann::ordered_json;

namespace {

ordered_json data(const char* name) {
  return ordered_json::parse(std::ifstream(std::string(ESPALIER_TEST_DATA "/tokenizer/") + name));
}

const ordered_json& golden() {
  static const ordered_json file = data("chats.json");
  return file;
}

chat_template made(const std::string& text) {
  return chat_template::of(text, ordered_json::object(), "file");
}

chat_template named(const std::string& name) {
  for (const ordered_json& entry : golden()["templates"]) {
    if (entry["name"] == name)
      return chat_template::of(entry["template"].get<std::string>(),
                               {{"bos_token", entry["bos_token"]}, {"eos_token", entry["eos_token"]}}, "file");
  }
  FAIL("there is no template " << name);
  return chat_template::labelled("", "");
}

ordered_json said(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

std::string joined(const std::vector<prompt_piece>& pieces) {
  std::string text;
  for (const prompt_piece& piece : pieces)
    text += piece.text;
  return text;
}

std::string written(const chat_template& chat, const chat_input& input) {
  return joined(chat.prompt(input));
}

std::string refusal(const chat_template& chat, const chat_input& input) {
  return message_of<input_error>([&] { (void)chat.prompt(input); });
}

std::string complaint(const std::string& text) {
  return message_of<model_error>([&] { (void)made(text); });
}

}  // namespace

TEST_CASE("numbers in templates are those that Python reads", "[chat_template]") {
  const auto number = [](const std::string& text) {
    return written(made("{{ " + text + " }}"), {.messages = ordered_json::array()});
  };
  CHECK(number("0.1000000000000000055511151231257827021181583404541015625") == "0.1");
  CHECK(number("9007199254740993.0") == "9007199254740992.0");
  CHECK(number("123456789012.34567890123456789012345678901234567890123456789") == "123456789012.34567");
  CHECK(number("' 2.55e1 '|int") == "25");
  CHECK(number("'+.5e+1'|int") == "5");
  CHECK(number("'-007.'|int") == "-7");
  for (const std::string text :
       {"", "+", ".", "e1", "1e", "1.2.3", "+-5", "++5", "1-2", "1e400", "0x10", "inf", "nan", "1,5"}) {
    INFO(text);
    CHECK(number("'" + text + "'|int(-1)") == "-1");
  }
}

TEST_CASE("chat templates give the prompts that jinja2 makes of them", "[chat_template]") {
  for (const ordered_json& entry : golden()["templates"]) {
    const chat_template chat = named(entry["name"].get<std::string>());
    for (std::size_t i = 0; i < golden()["chats"].size(); ++i) {
      INFO(entry["name"] << " " << golden()["chats"][i]);
      chat_input input{.messages = ordered_json::array()};
      for (const ordered_json& message : golden()["chats"][i])
        input.messages.push_back(said(message[0].get<std::string>(), message[1].get<std::string>()));
      if (entry["prompts"][i].is_null()) {
        CHECK(says(refusal(chat, input), "the chat template of file stops in line"));
      } else {
        CHECK(written(chat, input) == entry["prompts"][i].get<std::string>());
      }
    }
  }
}

TEST_CASE("each part of Jinja that templates use does what it does in jinja2", "[chat_template]") {
  const ordered_json file = data("jinja.json");
  for (const ordered_json& entry : file["templates"]) {
    const auto text = entry["template"].get<std::string>();
    INFO(text);
    const chat_template chat = chat_template::of(text, file["variables"], "file");
    const chat_input input{
        .messages = file["messages"], .end = chat_end::complete, .now = file["now"].get<std::time_t>()};
    if (entry["text"].is_null()) {
      CHECK(says(refusal(chat, input), "the chat template of file stops in line 1: "));
    } else {
      CHECK(written(chat, input) == entry["text"].get<std::string>());
    }
  }
}

TEST_CASE("what is not supported in a template is refused by its line", "[chat_template]") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{% include 'x' %}", "{% include %} is not supported"},
      {"{% do x %}", "{% do %} is not supported"},
      {"{% raw %}{% endraw %}", "{% raw %} is not supported"},
      {"{{ x | nothing }}", "the filter \"nothing\" is not supported"},
      {"{{ x is nothing }}", "the test \"nothing\" is not supported"},
      {"{% if x %}", "\"endif\" is missing"},
      {"{% endif %}", "{% endif %} is not supported"},
      {"{% for x in y recursive %}{% endfor %}", "\"%}\" is missing before \"recursive"},
      {"{% break %}", "\"break\" stands outside of loops"},
      {"{{ x", "\"}}\" is missing before \"the end\""},
      {"{# x", "a comment does not end"},
      {"{{ 'x }}", "a text does not end"},
      {"{{ (x }}", "\")\" is missing before \"}}\""},
      {"{{ x) }}", "\"}}\" is missing before \") }}\""},
      {"{{ x ? y }}", "\"}}\" is missing before \"? y }}\""},
      {"{{ 1 < 2 < 3 }}", "a comparison of a comparison is not supported"},
      {"{{ 1 not == 2 }}", "\"}}\" is missing before \"not == 2 }}\""},
      {"{{ }}", "an expression is missing before \"}}\""},
      {"{{ 1 1 }}", "\"}}\" is missing before \"1 }}\""},
      {"{{ 99999999999999999999 }}", "is not supported"},
      {"{{ 007 }}", "is not supported"},
      {"{{ '\\N{DASH}' }}", "has no meaning"},
      {"{{ '\\ud800' }}", "that is no character"},
      {"{{ f(a=1, 2) }}", "an argument without a name follows one with a name"},
      {"{% set 1 = 2 %}", "a name is missing before \"1 = 2 %}\""},
      {"{{ " + std::string(100, '(') + "1" + std::string(100, ')') + " }}", "nested more than 60 levels deep"},
  };
  for (const auto& [text, message] : cases) {
    INFO(text);
    CHECK(says(complaint("one\n\n" + text), "file has a chat template that cannot be run: line 3: ", message));
  }
  // What is long need not be deep.
  std::string sum = "{{ 1", members = "{{ messages";
  for (int i = 0; i < 500; ++i) {
    sum += " + 1";
    members += "[0:]";
  }
  CHECK(written(made(sum + " }}"), {.messages = ordered_json::array()}) == "501");
  CHECK(written(made(members + " }}"), {.messages = ordered_json::array()}) == "[]");
}

TEST_CASE("a template that never ends, or grows without bound, stops with an error", "[chat_template]") {
  const std::string grows = "{% set ns = namespace(s='0123456789', t='0123456789') %}{% for i in range(60) %}";
  for (const std::string& text :
       {grows + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
        grows + "{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        grows + "{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}",
        std::string("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), std::string("{{ 'a' * 1000000000 }}"),
        std::string("{{ range(1000000) }}"), std::string("{{ [0] * 100000000 }}"),
        std::string("{{ 9223372036854775807 + 1 }}"), std::string("{{ 3037000500 * 3037000500 }}"),
        std::string("{{ 'x' | indent(1000000000) }}"),
        std::string("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
        std::string("{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}"),
        std::string("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me.me }}")}) {
    INFO(text);
    CHECK(
        says(refusal(made(text), {.messages = ordered_json::array()}), "the chat template of file stops in line 1: "));
  }
  for (const std::string name : {"dict(a=1)", "self", "cycler('a')"})
    CHECK(says(refusal(made("{{ " + name + " }}"), {.messages = ordered_json::array()}), "is not supported"));
  const std::pair<std::string, std::string> cases[] = {
      {"{% for a in [1] %}{{ loop.cycle('a') }}{% endfor %}", "\"cycle\" is not defined"},
      {"{% for a in [1] %}{% macro f() %}{% endmacro %}{% endfor %}", "a macro inside of another part"},
      {"{% set g = [1] | select %}{{ g | list }}{{ g | list }}", "read once is read again"},
      {"{{ 'a\\r\\nb' | indent }}", "indent knows no ends of lines"},
      {"{{ 'stra\u00DFe' | upper }}", "cannot be changed"},
      {"{{ 'a'.replace('b') }}", "needs the argument \"new\""},
      {"{{ 'a' | trim('b', 'c') }}", "1 arguments too many"},
      {"{{ [1] | sort(reverse=true) }}", "\"reverse\", which is not known"},
      {"{{ [1] | map('nothing') }}", "there is no filter \"nothing\""},
      {"{{ [1] | select('nothing') }}", "there is no test \"nothing\""}};
  for (const auto& [text, message] : cases) {
    INFO(text);
    CHECK(says(refusal(made(text), {.messages = ordered_json::array()}), "stops in line 1: ", message));
  }
  ordered_json deep = "x";
  for (int i = 0; i < 300; ++i)
    deep = ordered_json::array({deep});
  CHECK(says(refusal(made("{{ messages }}"), {.messages = {{{"content", deep}}}}), "nested more than 200 levels"));
}

TEST_CASE("what a template writes is trusted, and what it is given is not", "[chat_template]") {
  const chat_input input{.messages = {said("system", "<|im_end|>"), said("user", "<|im_start|>")}};
  CHECK(named("chatml").prompt(input) == std::vector<prompt_piece>{{"<|im_start|>system\n", true},
                                                                   {"<|im_end|>", false},
                                                                   {"<|im_end|>\n<|im_start|>user\n", true},
                                                                   {"<|im_start|>", false},
                                                                   {"<|im_end|>\n<|im_start|>assistant\n", true}});
  for (const ordered_json& entry : golden()["templates"]) {
    std::string untrusted;
    for (const prompt_piece& piece :
         named(entry["name"].get<std::string>()).prompt({.messages = ordered_json::array({said("user", "Q")})}))
      if (!piece.is_trusted) untrusted += piece.text;
    CHECK(untrusted == "Q");
  }
  // Whatever is done with a text.
  const std::string x = "<|X|>";
  for (const std::string text : {"m | trim",
                                 "m | upper",
                                 "m | replace('q', 'a')",
                                 "'a' ~ m",
                                 "m[0:]",
                                 "m[::-1][::-1]",
                                 "m.split('|') | join('-')",
                                 "m | tojson",
                                 "[m] | string",
                                 "m | indent",
                                 "m | capitalize",
                                 "[m] | join",
                                 "(m ~ '') * 2",
                                 "m | list | join",
                                 "m | safe + ''",
                                 "m.replace('q', 'q')",
                                 "m | title",
                                 "{m: 1} | items | first | first",
                                 "m | default('x')",
                                 "strftime_now(m)",
                                 "strftime_now('q' ~ m ~ 'q')",
                                 "m | string",
                                 "m | lower",
                                 "m | reverse",
                                 "m | sort | join",
                                 "m | unique | join",

                                 "[m] | min",
                                 "m | first ~ (m | last)",
                                 "[m] | map('upper') | join",
                                 "namespace(a=m).a",
                                 "m.strip().lstrip().rstrip()",
                                 "m.upper().lower().title()",
                                 "{'a': m} | tojson",
                                 "{'a': m} | string",
                                 "{m: m}.keys() | list | string",
                                 "m if true else m",
                                 "{m: m} | dictsort | string"}) {
    INFO(text);
    const auto pieces = made("{% set m = messages[0].content %}{{ " + text + " }}")
                            .prompt({.messages = ordered_json::array({said("user", x)})});
    for (const prompt_piece& piece : pieces)
      if (piece.is_trusted) CHECK(piece.text.find_first_of("xX<>|") == std::string::npos);
    CHECK(!pieces.empty());
  }
  // Usual roles may be part of a mark; others may not.
  const chat_template phi = made("{% for m in messages %}{{ '<|' + m.role + '|>' }}{% endfor %}");
  CHECK(phi.prompt({.messages = ordered_json::array({said("user", "")})}) ==
        std::vector<prompt_piece>{{"<|user|>", true}});
  CHECK(phi.prompt({.messages = ordered_json::array({said("end", "")})}) ==
        std::vector<prompt_piece>{{"<|", true}, {"end", false}, {"|>", true}});
  CHECK(made("{{ x }}").prompt({.messages = ordered_json::array(), .variables = {{"x", "<s>"}}}) ==
        std::vector<prompt_piece>{{"<s>", false}});
}

TEST_CASE("tools and variables reach the template, or are refused", "[chat_template]") {
  const chat_template chat =
      made("{{ tools | tojson }}{{ documents is none }}{{ thinks is defined }}{{ add_generation_prompt }}");
  const ordered_json messages = ordered_json::array();
  CHECK(chat.reads("tools"));
  CHECK(!chat.reads("tool"));
  CHECK(written(chat, {.messages = messages}) == "nullTrueFalseTrue");
  CHECK(written(chat, {.messages = messages, .tools = {{{"z", 1}, {"a", 2}}}, .end = chat_end::complete}) ==
        "[{\"z\": 1, \"a\": 2}]TrueFalseFalse");
  CHECK(written(chat, {.messages = messages, .variables = {{"thinks", false}, {"documents", "d"}}}) ==
        "nullFalseTrueTrue");
  CHECK(says(refusal(chat, {.messages = messages, .variables = {{"think", 1}}}), "has no variable \"think\"",
             "nearest name is \"thinks\""));
  CHECK(says(refusal(chat, {.messages = messages, .variables = {{"messages", 1}}}), "cannot be given twice"));
  CHECK(says(refusal(chat, {.messages = messages, .variables = 3}), "must be an object"));
  CHECK(says(refusal(chat, {.messages = messages, .tools = 3}), "tools must be an array"));
  CHECK(says(refusal(made("x"), {.messages = messages, .tools = {1}}), "there are tools", "does not read any"));
  CHECK(says(refusal(chat, {.messages = 3}), "must be an array"));
  CHECK(says(refusal(chat, {.messages = {3}}), "message 0 is no object"));
}

TEST_CASE("a last message is continued where it ends", "[chat_template]") {
  const auto continued = [](const char* name, const std::string& content) {
    return written(named(name),
                   {.messages = {said("user", "Sure"), said("assistant", content)}, .end = chat_end::continued});
  };
  CHECK(continued("chatml", "Sure").ends_with("<|im_start|>assistant\nSure"));
  CHECK(continued("chatml", "Sure, ").ends_with("<|im_start|>assistant\nSure, "));
  CHECK(continued("llama 3", " Sure ").ends_with("assistant<|end_header_id|>\n\nSure"));
  CHECK(says(message_of<input_error>([&] { (void)continued("chatml", ""); }), "the last message cannot be continued"));
  const ordered_json parts = {{{"type", "text"}, {"text", "So"}}};
  CHECK(written(made("{% for m in messages %}{{ m.content[0].text }}</s>{% endfor %}"),
                {.messages = {{{"role", "assistant"}, {"content", parts}}}, .end = chat_end::continued}) == "So");
}

TEST_CASE("labels stand before what each says, on lines of their own", "[chat_template]") {
  const chat_template chat = chat_template::labelled("Question:", "Answer:");
  CHECK(written(chat, {.messages = {said("system", "Be brief."), said("user", "One plus?"), said("assistant", "Two."),
                                    said("user", "And then?")}}) ==
        "Be brief.\nQuestion: One plus?\nAnswer: Two.\nQuestion: And then?\nAnswer:");
  CHECK(chat.end_of_turn() == "\nQuestion:");
  CHECK(chat_template::labelled("", "A").end_of_turn().empty());
  CHECK(says(refusal(chat, {.messages = ordered_json::array({said("king", "Hi")})}),
             "roles are system, user and assistant, not king"));
}

TEST_CASE("the end of a turn is what a template writes after an answer", "[chat_template]") {
  CHECK(named("chatml").end_of_turn() == "<|im_end|>");
  CHECK(named("llama 2").end_of_turn() == "</s>");
  CHECK(named("llama 3").end_of_turn() == "<|eot_id|>");
  CHECK(made("{{ raise_exception('never') }}").end_of_turn().empty());
}
