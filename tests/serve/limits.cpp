// SPDX-License-Identifier: BSL-1.0
// What the server refuses, and how it goes on after it.
#include <chrono>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "program.hpp"

namespace {

using nlohmann::json;
using namespace std::chrono_literals;

constexpr auto completions = "/v1/completions";

struct reply {
  int status = 0;
  std::string head;
  json body;

  json error() const { return body.is_object() && body.contains("error") ? body["error"] : json::object(); }
};

reply read_reply(const std::string& text) {
  reply r;
  const std::size_t end = text.find("\r\n\r\n");
  if (text.compare(0, 9, "HTTP/1.1 ") != 0 || end == std::string::npos) return r;
  r.status = std::stoi(text.substr(9, 3));
  r.head = text.substr(0, end + 2);
  r.body = json::parse(text.substr(end + 4), nullptr, false);
  return r;
}

// A server that is easily full, with a key.
struct strict_server {
  server_process process{
      {"--policy",       "chain", "--max-texts",     "1", "--max-waiting",     "2",  "--max-body",   "2000",
       "--read-timeout", "1",     "--write-timeout", "1", "--max-connections", "12", "--keep-alive", "2",
       "--model-name",   "tiny",  "--grace",         "1"},
      "the key"};

  static std::string key() { return "Authorization: Bearer the key\r\n"; }

  reply send(const std::string& request) const {
    const raw_client client(process.port());
    client.send(request);
    return read_reply(client.receive(20s));
  }
  reply ask(const json& body, const std::string& path = completions) const {
    return send(post(path, body.dump(), key() + "Connection: close\r\n"));
  }
  reply get(const std::string& path, const std::string& method = "GET") const {
    return send(method + " " + path + " HTTP/1.1\r\nHost: test\r\n" + key() + "Connection: close\r\n\r\n");
  }
};

bool contains(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

}  // namespace

TEST_CASE("a server refuses what it does not serve, says why, and goes on", "[serve][limits]") {
  strict_server server;
  const json fine = {{"prompt", "The king"}, {"max_tokens", 2}, {"temperature", 0}};

  {
    INFO("the key");
    CHECK(server.ask(fine).status == 200);
    for (const std::string wrong : {"", "Authorization: Bearer the kez\r\n", "Authorization: Bearer the key2\r\n",
                                    "Authorization: Basic the key\r\n", "Authorization: Bearer\r\n"}) {
      const reply r = server.send(post(completions, fine.dump(), wrong));
      CHECK(r.status == 401);
      CHECK(r.error()["code"] == "invalid_api_key");
      CHECK(r.error()["type"] == "authentication_error");
      CHECK(contains(r.head, "Connection: close\r\n"));
    }
    CHECK(server.send("GET /metrics HTTP/1.1\r\n\r\n").status == 401);
    CHECK(server.send("GET /health HTTP/1.1\r\nConnection: close\r\n\r\n").status == 200);
  }
  {
    INFO("paths and methods");
    CHECK(server.get("/").status == 404);
    CHECK(server.get("/v1/completions/").status == 404);
    CHECK(server.ask(fine, "/v1/embeddings").status == 404);
    const reply get = server.get(completions);
    CHECK(get.status == 405);
    CHECK(contains(get.head, "Allow: POST\r\n"));
    CHECK(server.get("/health", "DELETE").status == 405);
    CHECK(server.ask(fine, "/health").status == 405);
    CHECK(server.get("/v1/models").body["data"][0]["id"] == "tiny");
    CHECK(server.get("/v1/models/tiny").body["id"] == "tiny");
    CHECK(server.get("/v1/models/huge").status == 404);
    json other = fine;
    other["model"] = "huge";
    CHECK(server.ask(other).status == 404);
  }
  {
    INFO("bodies");
    const reply broken = server.send(post(completions, "{\"prompt\": ", server.key() + "Connection: close\r\n"));
    CHECK(broken.status == 400);
    CHECK(broken.error()["message"] == "The body is not JSON: it cannot be read from byte 12 of 11 on.");
    CHECK(server.send(post(completions, std::string(1900, '['), server.key() + "Connection: close\r\n")).status == 400);
    json long_one = fine;
    long_one["user"] = std::string(2000, 'x');
    CHECK(server.ask(long_one).status == 413);
    const std::string head = "POST /v1/completions HTTP/1.1\r\n" + server.key();
    const std::string is_json = "Content-Type: application/json\r\n";
    CHECK(server.send(head + is_json + "\r\n").status == 411);
    CHECK(server.send(head + "Content-Length: 2\r\n\r\n{}").status == 415);
    CHECK(server.send(head + is_json + "Content-Length: 5x\r\n\r\n{}").status == 400);
    CHECK(server.send(head + is_json + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}").status == 400);
    CHECK(server.send(head + is_json + "Content-Length: 99999999999999999999\r\n\r\n{}").status == 413);
    const std::string chunked = head + is_json + "Transfer-Encoding: chunked\r\n\r\n";
    const std::string text = fine.dump();
    CHECK(server.send(chunked + "0" + (text.size() < 16 ? "" : "x") + "\r\n\r\n").status == 400);
    std::string endless = chunked;
    for (int i = 0; i < 20; ++i)
      endless += "80\r\n" + std::string(128, ' ') + "\r\n";
    CHECK(server.send(endless).status == 413);
  }
  {
    INFO("heads");
    CHECK(server.send("nonsense\r\n\r\n").status == 400);
    CHECK(server.send("GET /health HTTP/1.1\r\nX: " + std::string(40000, 'x') + "\r\n\r\n").status == 431);
    std::string many = "GET /health HTTP/1.1\r\n";
    for (int i = 0; i < 5000; ++i)
      many += "X-" + std::to_string(i) + ": y\r\n";
    const int status = server.send(many + "\r\n").status;
    CHECK((status == 431 || status == 400));  // by us, or by an httplib that counts them
    CHECK(server.send("GET /" + std::string(50000, 'x')).status == 431);
  }
  {
    INFO("slow clients");
    const int port = server.process.port();
    const raw_client line(port), head(port), body(port), silent(port);
    line.send("GET /hea");
    head.send("GET /health HTTP/1.1\r\nX-Slow: ");
    std::string request = post(completions, fine.dump(), server.key());
    body.send(request.substr(0, request.size() - 5));
    CHECK(read_reply(line.receive(10s)).status == 408);
    CHECK(read_reply(head.receive(10s)).status == 408);
    CHECK(read_reply(body.receive(10s)).status == 408);
    CHECK(silent.receive(10s) == "");
  }
  {
    INFO("one connection, a wrong request before a right one");
    const raw_client client(server.process.port());
    client.send(post(completions, "[]", server.key()));
    CHECK(contains(client.receive(20s, "}}"), "The body must be a JSON object, but is []."));
    client.send(post(completions, fine.dump(), server.key()));
    CHECK(read_reply(client.receive(20s, "}}")).status == 200);
  }
  {
    INFO("an older client");
    const raw_client client(server.process.port());
    const std::string body = "{\"prompt\": \"The king\", \"stream\": true, \"max_tokens\": 3}";
    client.send("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n" + server.key() +
                "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    const std::string all = client.receive(20s);
    CHECK(contains(all, "\r\n\r\ndata: {"));
    CHECK(all.compare(all.size() - 14, 14, "data: [DONE]\n\n") == 0);
  }
}

TEST_CASE("a full server refuses texts with 429 and clients with 503, and ends in time", "[serve][limits]") {
  strict_server server;
  const json text = {{"prompt", "The king"}, {"max_tokens", 1000}, {"temperature", 1}, {"seed", 1}, {"n", 3},
                     {"stream", true}};
  // One text is written, two wait: a fourth finds no room.
  const raw_client writing(server.process.port());
  writing.send(post(completions, text.dump(), server.key()));
  REQUIRE(contains(writing.receive(20s, "data: "), "200 OK"));
  const reply r = server.ask({{"prompt", "The queen"}, {"max_tokens", 1}});
  CHECK(r.status == 429);
  CHECK(r.error()["type"] == "rate_limit_error");
  CHECK(r.error()["code"] == "queue_full");
  CHECK(contains(r.head, "Retry-After: 1\r\n"));
  CHECK(server.ask({{"prompt", "The queen"}, {"n", 4}}).status == 400);

  std::deque<raw_client> idle;
  for (int i = 0; i < 12; ++i)
    idle.emplace_back(server.process.port());
  std::this_thread::sleep_for(200ms);
  const reply busy = server.get("/health");
  CHECK(busy.status == 503);
  CHECK(busy.error()["code"] == "busy");
  idle.clear();
  std::this_thread::sleep_for(500ms);
  CHECK(server.get("/health").status == 200);

  server.process.tell_to_end();
  const std::string first = writing.receive(20s);
  CHECK((contains(first, "The server is about to end.") || contains(first, "\"finish_reason\":\"")));
  CHECK(first.compare(first.size() - 7, 7, "\r\n0\r\n\r\n") == 0);
  CHECK(server.process.wait(10s) == 0);
}

TEST_CASE("a request of many texts does not hold others up", "[serve][limits]") {
  server_process server({"--policy", "chain", "--max-texts", "2", "--grace", "0"});
  const raw_client many(server.port());
  many.send(post(completions, R"({"prompt": "The king", "max_tokens": 300, "n": 24, "ignore_eos": true})"));
  std::this_thread::sleep_for(500ms);
  const raw_client one(server.port());
  one.send(post(completions, R"({"prompt": "The queen", "max_tokens": 4})", "Connection: close\r\n"));
  CHECK(contains(one.receive(60s), "200 OK"));
  CHECK(many.receive(1ms).empty());  // its texts are still being written
}

TEST_CASE("a server that is told to end finishes what it writes", "[serve][limits]") {
  server_process server({"--policy", "dynatree"});
  const raw_client client(server.port());
  client.send(post(completions, R"({"prompt": "The king", "max_tokens": 150, "seed": 1, "stream": true})"));
  std::string all = client.receive(20s, "data: ");
  server.tell_to_end();
  all += client.receive(30s);
  CHECK(contains(all, "\"finish_reason\":\"length\""));
  CHECK(contains(all, "data: [DONE]\n\n"));
  CHECK(server.wait(10s) == 0);
}

TEST_CASE("a server that is told to end before anybody came ends", "[serve][limits]") {
  for (int i = 0; i < 3; ++i) {
    server_process server({"--policy", "chain"});
    server.tell_to_end();
    CHECK(server.wait(10s) == 0);
  }
}
