// SPDX-License-Identifier: BSL-1.0
// The server's drafters, none of which changes a text.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "program.hpp"

using namespace std::chrono_literals;

namespace {

// Returns the texts that a server with these arguments writes at once, and how many of their drafted tokens were
// accepted.
std::pair<std::vector<std::string>, int> written(const std::vector<std::string>& arguments) {
  const server_process server(arguments);
  const raw_client client(server.port());
  client.send(post("/v1/completions",
                   R"({"prompt": ["Question: Tom has 3 apples and", "The king", "Once upon a time there was"],)"
                   R"( "max_tokens": 40, "temperature": 0})",
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
  const std::string counts = scraper.receive(10s), name = "\nespalier_tokens_accepted_total ";
  return {texts, std::stoi(counts.substr(counts.find(name) + name.size()))};
}

}  // namespace

TEST_CASE("A block drafts for all texts at once what the target writes alone", "[serve][load]") {
  const auto [plain, of_text] = written({"--policy", "chain", "--drafter", "text"});
  REQUIRE(plain.size() == 3);
  CHECK(plain[0] != plain[1]);
  const std::string block = SERVE_MODELS "/block";
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--drafter", "block", "--policy", "chain"},
        {"--drafter", "block", "--policy", "dynatree"},
        {"--drafter", "block"},  // as large as pays by what a block's pass costs
        {"--draft", block, "--policy", "dynatree"}}) {
    const auto [texts, accepted] = written(arguments);
    CHECK(texts == plain);
    CHECK(accepted > 10);
  }
}
