// SPDX-License-Identifier: BSL-1.0
// The server's drafters, none of which changes a text.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "generate/tiny_hybrid.hpp"
#include "program.hpp"
#include "scratch.hpp"

using namespace std::chrono_literals;

namespace {

// The texts that a server writes at once, and the number of tokens that it drafted for them and accepted.
struct written_texts {
  std::vector<std::string> texts;
  int drafted, accepted;
};

written_texts written(
    const std::vector<std::string>& arguments, const std::string& models = "",
    const std::string& prompts = R"(["Question: Tom has 3 apples and", "The king", "Once upon a time there was"])") {
  const server_process server(arguments, "", models);
  const raw_client client(server.port());
  client.send(post("/v1/completions", R"({"prompt": )" + prompts + R"(, "max_tokens": 40, "temperature": 0})",
                   "Connection: close\r\n"));
  const std::string reply = client.receive(120s);
  INFO(reply);
  REQUIRE(reply.find("200 OK") != std::string::npos);
  std::vector<std::string> texts;
  const auto choices = nlohmann::json::parse(reply.substr(reply.find("\r\n\r\n") + 4)).at("choices");
  for (const auto& choice : choices)
    texts.push_back(choice.at("text"));
  const raw_client scraper(server.port());
  scraper.send("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string counts = scraper.receive(10s);
  const auto count = [&](const std::string& name) {
    return std::stoi(counts.substr(counts.find("\n" + name + " ") + name.size() + 2));
  };
  return {texts, count("espalier_tokens_drafted_total"), count("espalier_tokens_accepted_total")};
}

}  // namespace

TEST_CASE("A block drafts for all texts at once what the target writes alone", "[serve][load]") {
  const std::vector<std::string> plain = written({"--policy", "chain", "--drafter", "text"}).texts;
  REQUIRE(plain.size() == 3);
  CHECK(plain[0] != plain[1]);
  const std::string block = SERVE_MODELS "/block";
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--drafter", "block", "--policy", "chain"},
        {"--drafter", "block", "--policy", "dynatree"},
        {"--drafter", "block"},  // as large as pays by what a block's pass costs
        {"--draft", block, "--policy", "dynatree"}}) {
    const written_texts drafted = written(arguments);
    CHECK(drafted.texts == plain);
    CHECK(drafted.accepted > 10);
  }
}

TEST_CASE("Heads, blocks and other models draft what a hybrid writes alone", "[serve][load]") {
  const auto kind = GENERATE(espalier::recurrence_kind::mamba2, espalier::recurrence_kind::gated_delta);
  const std::string target = scratch() + "/small_hybrid", other = scratch() + "/other_hybrid";
  // The sizes of the target of the golden tests' heads.
  const tiny_hybrid small{.kind = kind, .vocab = 96, .hidden = 32, .layers = 7, .positions = 128};
  small.write(target);
  tiny_hybrid noisy = small;
  noisy.noise = 0.1F;
  noisy.write(other);
  const std::string prompts = "[[5, 17, 80, 3], [1, 2, 3, 4, 5, 6], [80, 3, 80, 3, 80, 3, 80], [9]]";
  const std::vector<std::string> plain = written({"--policy", "chain", "--drafter", "text"}, target, prompts).texts;
  REQUIRE(plain.size() == 4);
  CHECK(plain[0] != plain[1]);
  const std::string heads = ESPALIER_TEST_DATA "/golden/heads";
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--draft", other},
                                                    {"--draft", other, "--policy", "dynatree", "--cache-tokens", "128"},
                                                    {"--draft", heads + "/plain", "--policy", "dynatree"},
                                                    {"--draft", heads + "/mtp", "--policy", "chain"},
                                                    {"--draft", heads + "/dspark_rnn", "--policy", "chain"},
                                                    {"--draft", heads + "/xpress_few", "--policy", "dynatree"},
                                                    {"--draft", heads + "/dflash_few", "--policy", "dynatree"}}) {
    INFO(arguments[1]);
    const written_texts drafted = written(arguments, target, prompts);
    CHECK(drafted.texts == plain);
    // By measured costs, a draft as slow as its target does not pay; heads of another model guess at random.
    CHECK((drafted.drafted > 100 || arguments.size() == 2));
    CHECK((drafted.accepted > 10 || arguments[1] != other || arguments.size() == 2));
  }
}
