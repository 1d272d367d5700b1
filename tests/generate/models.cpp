// SPDX-License-Identifier: BSL-1.0
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/core/error.hpp"
#include "models/prompts_file.hpp"
#include "program.hpp"

namespace {

const std::string models_folder = GENERATE_MODELS;

std::vector<models::prompt> parsed(const std::string& lines) {
  std::istringstream file(lines);
  return models::read_prompts(file, "file");
}

std::string refusal(const std::string& lines) {
  try {
    parsed(lines);
  } catch (const espalier::input_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("prompts are strings or objects, one a line", "[prompts_file]") {
  const auto prompts =
      parsed("\"a\\nb\"\r\n \n{\"text\": \"c\", \"domain\": \"d\"}\n{\"tokens\": [3, 1], \"temperature\": 0.5}");
  REQUIRE(prompts.size() == 3);
  CHECK(prompts[0].text == "a\nb");
  CHECK(prompts[0].line == 1);
  CHECK(prompts[1].text == "c");
  CHECK(prompts[1].domain == "d");
  CHECK(prompts[1].line == 3);
  CHECK_FALSE(prompts[1].temperature);
  CHECK(prompts[2].tokens == std::vector<espalier::token_id>{3, 1});
  CHECK(prompts[2].temperature == 0.5F);
}

TEST_CASE("a prompt that cannot be read is named by file and line", "[prompts_file]") {
  for (const std::string line :
       {"", "x", "3", "[1]", "\"\"", "{}", "{\"text\": 1}", "{\"text\": \"a\", \"tokens\": [1]}", "{\"tokens\": []}",
        "{\"tokens\": [-1]}", "{\"tokens\": [1.5]}", "{\"tokens\": [4294967296]}", "{\"tokens\": 1}",
        "{\"text\": \"a\", \"domain\": 1}", "{\"text\": \"a\", \"temperature\": -1}",
        "{\"text\": \"a\", \"temperature\": \"1\"}", "{\"text\": \"a\"", "\"a\" \"b\"", "\"\xFF\""}) {
    INFO(line);
    if (line.empty()) {
      CHECK(refusal("\n") == "file holds no prompt.");
    } else {
      CHECK(refusal("\"fine\"\n" + line + "\n").compare(0, 13, "file, line 2 ") == 0);
    }
  }
  CHECK_THROWS_AS(models::read_prompts(scratch() + "/none.jsonl"), espalier::input_error);
}
