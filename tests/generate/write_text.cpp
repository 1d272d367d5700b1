// SPDX-License-Identifier: BSL-1.0
// The text of one method, its statistics and its pictures.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "catch.hpp"
#include "program.hpp"
#include "written.hpp"

namespace {

using nlohmann::json;

}  // namespace

TEST_CASE("JSON and the streamed text are the same text, of as many tokens as asked for", "[generate]") {
  const std::string arguments = "--prompt 'The river' --max-tokens 20 --method fixed";
  const json object = written(arguments);
  const json& entry = object.at("texts").at(0);
  CHECK(entry.at("prompt") == "The river");
  CHECK(entry.at("end") == "length");
  CHECK(entry.at("tokens").size() == 20);
  CHECK(object.at("statistics").at("tokens") == 20);
  std::int64_t limited = 0;
  for (const json& rounds : object.at("statistics").at("limited_by"))
    limited += rounds.get<std::int64_t>();
  CHECK(limited == object.at("statistics").at("rounds"));
  const json& seconds = object.at("statistics").at("seconds");
  CHECK(seconds.size() == 7);
  CHECK(seconds.at("target_forward") > 0.0);
  CHECK(seconds.at("draft_forward") > 0.0);
  const outcome streamed = run(arguments);
  CHECK(streamed.status == 0);
  CHECK(streamed.out.compare(0, text_of(object).size(), text_of(object)) == 0);
  CHECK(contains(streamed.out, "20 tokens by fixed with greedy in "));
  CHECK(contains(streamed.out, "ended by: length"));
}

TEST_CASE("no escape code is written where there is no terminal", "[generate]") {
  for (const char* arguments : {"", "--show-tree", "--compare --repeats 1", "--json", "--help"}) {
    const outcome result =
        run("--prompt 'The river' --max-tokens 8 " + std::string(arguments), "FORCE_COLOR=1 TERM=xterm");
    INFO(arguments);
    CHECK(result.status == 0);
    CHECK(result.out.find('\x1b') == std::string::npos);
    CHECK(result.err == "");
  }
}

TEST_CASE("on a terminal authors have colours, unless NO_COLOR is set", "[generate]") {
  if (std::system("script --version 2>/dev/null | grep -q util-linux") != 0) {
    WARN("there is no script(1) of util-linux to make a terminal with");
    return;
  }
  const auto on_terminal = [](const std::string& environment) {
    const std::string out = scratch() + "/terminal";
    const std::string command = environment +
                                " script -qec \"'" GENERATE_PROGRAM
                                "' --prompt 'The river' --max-tokens 8 --method fixed\" /dev/null </dev/null >'" +
                                out + "'";
    REQUIRE(std::system(command.c_str()) == 0);
    return contents(out);
  };
  const std::string coloured = on_terminal("unset NO_COLOR;");
  CHECK(contains(coloured, "\x1b[0;2mThe river"));
  CHECK(contains(coloured, "\x1b[0;35m"));
  const std::string plain = on_terminal("NO_COLOR=1");
  CHECK(contains(plain, "The river"));
  CHECK(plain.find('\x1b') == std::string::npos);
}

TEST_CASE("trees are drawn in the terminal, as SVG and as DOT", "[generate]") {
  const std::string svg = scratch() + "/tree.svg";
  const std::string dot = scratch() + "/tree.dot";
  const outcome result = run("--prompt 'The river' --max-tokens 12 --method fixed --svg " + svg + " --dot " + dot +
                             " --show-tree --ascii");
  CHECK(result.status == 0);
  CHECK(contains(result.out, "Round 0: "));
  CHECK(contains(result.out, " drafted tokens accepted, limited by "));
  CHECK(contains(result.out, "> "));
  CHECK(contains(contents(svg), "<svg "));
  CHECK(contains(contents(svg), "fixed, round "));
  CHECK(contains(contents(dot), "digraph tree {"));
  run("--prompt 'The river' --max-tokens 12 --method fixed --round 1 --svg " + svg);
  CHECK(contains(contents(svg), "fixed, round 1"));
}

TEST_CASE("a text ends with its stop string", "[generate]") {
  const std::string whole = text_of(written("--prompt 'The river' --max-tokens 32"));
  REQUIRE(whole.size() > 12);
  std::size_t at = 5;
  while (contains(whole.substr(at, 3), "'"))  // which would end the shell's quotes
    ++at;
  const std::string stop = whole.substr(at, 3);
  const json object = written("--prompt 'The river' --max-tokens 32 --stop nowhere --stop '" + stop + "'");
  const std::string text = text_of(object);
  CHECK(object.at("texts").at(0).at("end") == "stop string");
  CHECK(contains(text, stop));
  CHECK(whole.compare(0, text.size(), text) == 0);
  CHECK(text.size() < whole.size());
}

TEST_CASE("at a temperature the seed decides, and nothing about how passes are run", "[generate]") {
  for (const std::string method :
       {"dynatree", "delayed --verifier khisti", "iid-paths --paths 3 --verifier specinfer"}) {
    const std::string arguments = "--prompt 'The river' --max-tokens 24 --temperature 1 --method " + method;
    INFO(arguments);
    const std::string one = text_of(written(arguments + " --seed 1"));
    CHECK(text_of(written(arguments + " --seed 1 --threads 1 --commit truncate --order heavy-path")) == one);
    CHECK(text_of(written(arguments + " --seed 2")) != one);
  }
}

TEST_CASE("a tree shows how often a token was drawn", "[generate]") {
  const outcome result =
      run("--prompt 'The river' --max-tokens 8 --temperature 1 --method iid-paths --paths 4 --length 2 "
          "--draft.temperature 0.01 --show-tree --ascii");
  CHECK(result.status == 0);
  CHECK(contains(result.out, " x4 "));
  CHECK(contains(result.out, " of 8 drafted tokens accepted, limited by budget\n"));
}

TEST_CASE("prompts come from a file, as texts or tokens", "[generate]") {
  const std::string path = scratch() + "/prompts.jsonl";
  { std::ofstream(path) << "\"The river\"\n\n{\"text\": \"Once\", \"domain\": \"tales\"}\n{\"tokens\": [1, 404]}\n"; }
  const json object = written("--max-tokens 4 --prompts " + path);
  REQUIRE(object.at("texts").size() == 3);
  CHECK(object.at("texts").at(0).at("text") == text_of(written("--max-tokens 4 --prompt 'The river'")));
  CHECK(object.at("texts").at(1).at("domain") == "tales");
  CHECK(object.at("texts").at(2).at("tokens").size() == 4);
  CHECK(object.at("statistics").at("tokens") == 12);
}

TEST_CASE("what is written matches --regex, by every drafter", "[generate]") {
  const std::string pattern = "--regex '(It was|There were) [a-z]+ [a-z ]{5,20}\\.' --prompt 'A day.' --max-tokens 40 ";
  const std::string expected = text_of(written(pattern + "--method plain"));
  CHECK((expected.rfind("It was", 0) == 0 || expected.rfind("There were", 0) == 0));
  CHECK(expected.back() == '.');
  for (const char* drafter :
       {"--method dynatree", "--drafter block", "--drafter text", "--drafter text --method chain"}) {
    INFO(drafter);
    const json object = written(pattern + drafter);
    CHECK(text_of(object) == expected);
    CHECK(object.at("texts").at(0).at("end") == "stop token");
  }
  CHECK(contains(run("--regex '(a'").err, "has its end at position 2"));
  CHECK(run("--regex '(a'").status != 0);
}

TEST_CASE("what is written is JSON of --json-schema", "[generate]") {
  const std::string path = scratch() + "/schema.json";
  std::ofstream(path) << R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
    "age": {"type": "integer", "minimum": 0, "maximum": 120}}, "required": ["name", "age"],
    "additionalProperties": false})";
  const json value =
      json::parse(text_of(written("--json-schema " + path + " --prompt 'As JSON: ' --max-tokens 60")), nullptr, false);
  REQUIRE(value.is_object());
  CHECK((value.at("name").is_string() && value.at("age") >= 0 && value.at("age") <= 120));
  CHECK(contains(run("--json-schema /there/is/none").err, "--json-schema /there/is/none cannot be opened"));
  CHECK(contains(run("--json-schema /dev/null").err, "the JSON schema is no JSON"));
  CHECK(contains(run("--regex a --json-schema " + path).err, "--regex and --json-schema do not go together"));
  CHECK(contains(run("--ignore-formats").err, "--ignore-formats needs --json-schema"));
  CHECK(contains(run("--json-lines").err, "--json-lines needs --json-schema"));
  std::ofstream(path) << R"({"type": "string", "format": "colour", "maxLength": 5})";
  CHECK(contains(run("--json-schema " + path).err, "\"colour\""));
  CHECK(json::accept(text_of(written("--ignore-formats --json-schema " + path + " --prompt 'As JSON: '"))));
  // Where xgrammar is built in, ctest has tests of what is written.
  const outcome without_grammar = run("--grammar /there/is/none");
  CHECK(without_grammar.status == 2);
  CHECK((contains(without_grammar.err, "--grammar needs xgrammar") ||
         contains(without_grammar.err, "--grammar /there/is/none cannot be opened")));
}
