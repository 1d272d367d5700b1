// SPDX-License-Identifier: BSL-1.0
// What the comparison says, and its exit status, where a text is not plain decoding's.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "catch.hpp"
#include "program.hpp"

namespace {

outcome compare(const std::string& arguments) {
  return run("--compare --prompt 'The river' " + arguments, "", GENERATE_DIFFERING);
}

// The line of a method in the table.
std::string line_of(const std::string& method, const std::string& out) {
  const std::size_t begin = out.find("\n" + method + " ");
  REQUIRE(begin != std::string::npos);
  return out.substr(begin + 1, out.find('\n', begin + 1) - begin - 1);
}

}  // namespace

TEST_CASE("a comparison in which a text differs ends with exit status 1 and says where", "[generate]") {
  const outcome result = compare("--repeats 1");
  CHECK(result.status == 1);
  CHECK(result.err == "");
  CHECK(line_of("chain", result.out).ends_with("  equal"));
  CHECK(line_of("fixed", result.out).ends_with("  DIFFERS"));
  CHECK(line_of("dynatree", result.out).ends_with("  equal"));
  CHECK(contains(result.out,
                 "\nAfter prompt 1, fixed differs from plain decoding from token 2 on.\n"
                 "Texts differ from plain decoding's.\n"));
  CHECK_FALSE(contains(result.out, "All texts are equal"));
}

TEST_CASE("a text that differs in a later run is found too", "[generate]") {
  const outcome result = compare("--method dynatree --repeats 3 --prompt Once");
  CHECK(result.status == 1);
  CHECK(line_of("dynatree", result.out).ends_with("  DIFFERS"));
  CHECK(contains(result.out,
                 "\nAfter prompt 1, dynatree differs from plain decoding from token 3 on.\n"
                 "After prompt 2, dynatree differs from plain decoding from token 3 on.\n"
                 "Texts differ from plain decoding's.\n"));
}

TEST_CASE("as JSON the comparison has the same exit status, and names the method", "[generate]") {
  const outcome result = compare("--repeats 1 --json");
  CHECK(result.status == 1);
  const auto object = nlohmann::json::parse(result.out);
  CHECK(object.at("equal") == false);
  for (const auto& method : object.at("methods"))
    CHECK(method.at("equal") == (method.at("method") != "fixed"));
}

TEST_CASE("where the differing method is left out, or texts are drawn, the exit status is 0", "[generate]") {
  const outcome equal = compare("--repeats 1 --method chain");
  CHECK(equal.status == 0);
  CHECK(contains(equal.out, "All texts are equal to plain decoding's.\n"));
  const outcome drawn = compare("--repeats 1 --method fixed --temperature 1");
  CHECK(drawn.status == 0);
  CHECK(line_of("fixed", drawn.out).ends_with("  same distribution"));
}

TEST_CASE("a part of one's own has a name of its own, of letters, digits and hyphens", "[generate]") {
  const auto named = [](const std::string& name) {
    return run("--prompt x --method '" + name + "'", "OWN_PART='" + name + "'", GENERATE_DIFFERING);
  };
  for (const char* taken : {"chain", "naive", "draft", "text"}) {
    INFO(taken);
    const outcome result = named(taken);
    CHECK(result.status == 2);
    CHECK(contains(result.err, "generate: a part is called " + std::string(taken) +
                                   ", but that name is taken: it needs another one.\n"));
  }
  for (const char* wrong : {"", "Mine", "my_part", "-mine"}) {
    INFO(wrong);
    const outcome result = named(wrong);
    CHECK(result.status == 2);
    CHECK(contains(result.err, "generate: a part is called \"" + std::string(wrong) +
                                   "\", but its name must consist of a to z, 0 to 9 and hyphens.\n"));
  }
  const outcome result = named("mine");
  CHECK(result.status == 0);
  CHECK(contains(result.out, "3 tokens by mine with greedy"));
}
