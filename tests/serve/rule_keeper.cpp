// SPDX-License-Identifier: BSL-1.0
#include "../examples/serve/rule_keeper.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../examples/serve/background.hpp"
#include "catch.hpp"
#include "espalier/constraint/regular_expression.hpp"
#include "espalier/processor/constrained.hpp"
#include "models/renumbered_draft.hpp"
#include "program.hpp"
#include "raises.hpp"

using namespace espalier;
using namespace std::chrono_literals;

namespace {

constexpr token_id end_of_text = 256;

// A token for each byte, and one that ends texts.
vocabulary_trie bytes() {
  std::vector<std::string> pieces;
  for (int c = 0; c < 256; ++c)
    pieces.push_back(std::string(1, static_cast<char>(c)));
  pieces.emplace_back("</s>");
  return vocabulary_trie(std::move(pieces), {end_of_text});
}

std::function<models::text_rule()> expression(std::string pattern) {
  return [pattern = std::move(pattern)] { return models::text_rule(regular_expression(pattern, bytes())); };
}

std::vector<token_id> allowed_of(std::span<const std::uint32_t> mask) {
  std::vector<token_id> tokens;
  for (token_id t = 0; t <= end_of_text; ++t)
    if (static_cast<std::size_t>(t / 32) < mask.size() && (mask[static_cast<std::size_t>(t / 32)] >> t % 32 & 1U) != 0)
      tokens.push_back(t);
  return tokens;
}

// What find() says in the end.
std::string found(serve::rule_keeper& keeper, const serve::mask_awaited& what) {
  std::promise<std::string> said;
  keeper.find(what.use, what.after, [&](const std::string& why) { said.set_value(why); });
  return said.get_future().get();
}

// A folder with the bundled target alone.
std::string target_alone() {
  namespace files = std::filesystem;
  const files::path models = SERVE_MODELS, folder = files::temp_directory_path() / "espalier_target_alone";
  files::remove_all(folder);
  files::create_directory(folder);
  files::create_directory_symlink(files::canonical(models / "target"), folder / "target");
  files::create_symlink(files::canonical(models / "tokenizer.model"), folder / "tokenizer.model");
  return folder.string();
}

// Letters and digits, each written twice: the bytes are of many kinds, so that each state takes much memory.
const std::string doubled = [] {
  std::string pattern = "(";
  for (const char c : std::string("abcdefghijklmnopqrstuvwxyz0123456789"))
    pattern += {c, c, '|'};
  pattern.back() = ')';
  return pattern;
}();

}  // namespace

TEST_CASE("a rule is compiled once for all requests that give it", "[serve][rules]") {
  serve::rule_keeper keeper({});
  std::atomic<int> n = 0;
  const auto make = [&] {
    ++n;
    return expression("ab")();
  };
  const auto one = keeper.compile("ab", make), other = keeper.compile("ab", make);
  CHECK(n == 1);
  CHECK(one->rule() == other->rule());
  keeper.end(*one);
  CHECK(one->rule() == nullptr);
  CHECK(other->rule() != nullptr);
  CHECK(says(message_of<input_error>([&] { keeper.compile("(", expression("(")); }), "expected"));
}

TEST_CASE("a text sits out while another thread finds what its rule allows", "[serve][rules]") {
  serve::rule_keeper keeper({});
  const auto use = keeper.compile("rule", expression("(ab|ac){2}d*"));
  serve::served_rule rule(use);
  CHECK(allowed_of(rule.allowed(rule.start())) == std::vector<token_id>{'a'});
  serve::served_rule::state_type state;
  serve::mask_awaited awaited(use, {});
  {
    const std::lock_guard in_use(use->rule()->mutex);
    state = rule.advance(rule.advance(rule.start(), 'a'), 'c');  // reads later
    CHECK(state.unread == std::vector<token_id>{'a', 'c'});
    CHECK(!rule.prescribed(state));
    try {
      (void)rule.allowed(state);
      FAIL("it is known already");
    } catch (const serve::mask_awaited& what) {
      awaited = what;
    }
  }
  CHECK(found(keeper, awaited).empty());
  CHECK(allowed_of(rule.allowed(state)) == std::vector<token_id>{'a'});
  CHECK(rule.prescribed(state) == 'a');
  for (const token_id t : {'a', 'b'})
    state = rule.advance(state, t);
  CHECK(allowed_of(rule.allowed(state)) == std::vector<token_id>{'d', end_of_text});
  // The writing thread spends no more than its steps in a round.
  serve::rule_use poor(use->rule(), std::size_t{1} << 24, 3);
  serve::served_rule strict(std::shared_ptr<serve::rule_use>(&poor, [](serve::rule_use*) {}));
  auto unseen = strict.start();
  for (const token_id t : {'a', 'b', 'a', 'c', 'd', 'd'})
    unseen = strict.advance(unseen, t);
  CHECK_THROWS_AS(strict.allowed(unseen), serve::mask_awaited);
  poor.begin_round();
  // As the processor of a text: commit() throws nothing, whatever is known.
  constrained<serve::served_rule> process(rule);
  process.begin({});
  const std::vector<token_id> text{'a', 'b', 'a', 'c'};
  {
    const std::lock_guard in_use(use->rule()->mutex);
    process.commit(text);
  }
  CHECK(process.allows({}, 'd'));
  CHECK(!process.allows({}, 'a'));
}

TEST_CASE("a rule that takes too much memory is refused in a sentence, and others go on", "[serve][rules]") {
  serve::rule_keeper keeper({.rule_memory = 16});
  const auto costly = keeper.compile("costly", expression(doubled + "{0,10000}"));
  // Each letter leads to another state, of 200 bytes and more; the rule may take 4 MiB.
  serve::served_rule::state_type after{costly->rule()->start};
  after.unread.assign(19'990, 'a');
  const std::string why = found(keeper, {costly, after});
  INFO(why);
  CHECK(says(why, "more than 4194304 bytes", "Lower"));
  const auto use = keeper.compile("cheap", expression("[a-c]"));
  serve::served_rule rule(use);
  CHECK(allowed_of(rule.allowed(rule.start())) == std::vector<token_id>{'a', 'b', 'c'});
}

TEST_CASE("rules that no text uses are dropped, the least recently used first", "[serve][rules]") {
  serve::rule_keeper keeper({.rule_memory = 16});
  std::vector<std::shared_ptr<serve::rule_use>> uses;
  const auto pattern = [](int i) { return doubled + "{0,1000}" + std::string(static_cast<std::size_t>(i), '!'); };
  // Reads a text, so that the rule grows by a state of 200 bytes and more a letter.
  const auto grow = [&](const std::shared_ptr<serve::rule_use>& use) {
    serve::served_rule::state_type after{use->rule()->start};
    after.unread.assign(1990, 'a');
    REQUIRE(found(keeper, {use, after}).empty());
  };
  for (int i = 0; i < 8; ++i) {
    uses.push_back(keeper.compile(pattern(i), expression(pattern(i))));
    grow(uses.back());
  }
  const std::size_t all = keeper.bytes();
  CHECK(all > std::size_t{8} * 190 * 1024);
  for (const auto& use : uses)
    keeper.end(*use);
  // Each compile() looks what can go.
  std::atomic<int> n = 0;
  const auto make = [&](int i) {
    return [&, i] {
      ++n;
      return expression(pattern(i))();
    };
  };
  (void)keeper.compile("another", expression("a"));
  CHECK(keeper.bytes() <= (std::size_t{16} << 20) / 16 + 16384);
  (void)keeper.compile(pattern(7), make(7));
  CHECK(n == 0);
  (void)keeper.compile(pattern(0), make(0));
  CHECK(n == 1);
}

TEST_CASE("what waits for a keeper that ends is told so", "[serve][rules]") {
  serve::rule_keeper keeper({});
  const auto use = keeper.compile("a", expression("a"));
  keeper.stop();
  CHECK(found(keeper, {use, {}}) == "The server is about to end.");
  CHECK(message_of<serve::rule_error>([&] { keeper.compile("b", expression("b")); }) == "The server is about to end.");
}

TEST_CASE("work in the background gives way, and ends as the work does", "[serve][rules]") {
  CHECK(serve::in_background([] { return std::string("done"); }) == "done");
  CHECK_THROWS_AS(serve::in_background([]() -> int { throw serve::rule_error("no"); }), serve::rule_error);
#if defined(__linux__)
  const int own = sched_getscheduler(0);
  CHECK(serve::in_background([] { return sched_getscheduler(0); }) == SCHED_IDLE);
  CHECK(sched_getscheduler(0) == own);
#endif
}

TEST_CASE("a request whose rule takes too much is answered with 422, while others are served", "[serve][load]") {
  server_process server({"--policy", "chain", "--rule-memory", "16"});
  raw_client hostile(server.port());
  hostile.send(post("/v1/completions",
                    R"({"prompt": "The king", "max_tokens": 450, "guided_regex": "[a-z ]*[a-z][a-z ]{2000}"})"));
  raw_client guest(server.port());
  guest.send(post("/v1/completions", R"({"prompt": "The king", "max_tokens": 4, "guided_regex": "[a-z ]{1,20}"})",
                  "Connection: close\r\n"));
  CHECK(guest.receive(30s).find("200 OK") != std::string::npos);
  const std::string reply = hostile.receive(60s, "}}");
  INFO(reply);
  CHECK(reply.find("HTTP/1.1 422") == 0);
  CHECK(reply.find("rule_too_large") != std::string::npos);
  CHECK(reply.find("Lower its numbers of repetitions") != std::string::npos);
  CHECK(reply.find("\"guided_regex\"") != std::string::npos);
}

TEST_CASE("a draft with another vocabulary drafts in the server, and changes no text", "[serve][load]") {
  const std::string other = write_renumbered_draft(
      SERVE_MODELS, (std::filesystem::temp_directory_path() / "espalier_renumbered_draft").string());
  // What is written, and the number of drafted tokens that were accepted.
  const auto write = [](const std::vector<std::string>& arguments) {
    const server_process server(arguments);
    raw_client client(server.port());
    client.send(post("/v1/completions",
                     R"({"prompt": "Question: Tom has 3 apples and", "max_tokens": 40, "temperature": 0})",
                     "Connection: close\r\n"));
    const std::string reply = client.receive(60s);
    REQUIRE(reply.find("200 OK") != std::string::npos);
    raw_client scraper(server.port());
    scraper.send("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    const std::string counts = scraper.receive(10s), name = "\nespalier_tokens_accepted_total ";
    const std::size_t text = reply.find("\"text\"");
    return std::pair(reply.substr(text, reply.find("\"usage\"") - text),
                     std::stoi(counts.substr(counts.find(name) + name.size())));
  };
  const auto same = write({"--policy", "chain"}), translated = write({"--policy", "chain", "--draft", other});
  CHECK(translated.first == same.first);
  CHECK(translated.second == same.second);
  CHECK(same.second > 10);
}

TEST_CASE("without a draft model the server drafts from the text", "[serve][load]") {
  const std::string folder = target_alone();
  const auto write = [&](const std::vector<std::string>& arguments) {
    server_process server(arguments, "", folder);
    raw_client client(server.port());
    client.send(post("/v1/completions",
                     R"({"prompt": "The king said: the king said: the king said", "max_tokens": 24, "temperature": 0})",
                     "Connection: close\r\n"));
    const std::string reply = client.receive(60s);
    REQUIRE(reply.find("200 OK") != std::string::npos);
    raw_client scraper(server.port());
    scraper.send("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    const std::string counts = scraper.receive(10s);
    CHECK(counts.find("espalier_tokens_drafted_total 0\n") == std::string::npos);
    return reply.substr(reply.find("\"text\""), 120);
  };
  CHECK(write({"--policy", "chain"}) == write({"--policy", "cost-aware"}));
}

TEST_CASE("with --memory a text that was written before is drafted from the memory, also after a restart",
          "[serve][load]") {
  const std::string folder = target_alone(), file = folder + "/memory";
  const auto serve = [&](int memory) {
    return std::vector<std::string>{"--policy", "chain", "--memory", std::to_string(memory), "--memory-file", file};
  };
  // What is written, and the number of rounds that it takes.
  const auto write = [](const server_process& server) {
    const auto rounds = [&] {
      raw_client scraper(server.port());
      scraper.send("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
      const std::string counts = scraper.receive(10s), name = "\nespalier_rounds_total ";
      return std::stoi(counts.substr(counts.find(name) + name.size()));
    };
    const int before = rounds();
    raw_client client(server.port());
    client.send(post("/v1/completions", R"({"prompt": "The king", "max_tokens": 48, "temperature": 0})",
                     "Connection: close\r\n"));
    const std::string reply = client.receive(60s);
    REQUIRE(reply.find("200 OK") != std::string::npos);
    const std::size_t begin = reply.find("\"text\"");
    return std::pair(reply.substr(begin, reply.find("\"usage\"") - begin), rounds() - before);
  };
  std::string text;
  {
    server_process server(serve(4096), "", folder);
    const auto first = write(server), again = write(server);
    text = first.first;
    CHECK(again.first == text);
    CHECK(2 * again.second < first.second);
    server.tell_to_end();
    CHECK(server.wait(30s) == 0);
  }
  server_process server(serve(4096), "", folder);
  const auto after = write(server);
  CHECK(after.first == text);
  CHECK(after.second <= 12);  // five tokens are drafted a round
}
