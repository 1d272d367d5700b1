// SPDX-License-Identifier: BSL-1.0
// A client that leaves: its texts are cancelled while they are being written.
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "catch.hpp"
#include "program.hpp"

namespace {

using namespace std::chrono_literals;

double metric(int port, const std::string& name) {
  const raw_client client(port);
  client.send("GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n");
  const std::string reply = client.receive(20s);
  const std::size_t at = reply.find("\n" + name + " ");
  REQUIRE(at != std::string::npos);
  return std::stod(reply.substr(at + name.size() + 2));
}

double n_texts(int port) {
  return metric(port, "espalier_texts_running") + metric(port, "espalier_texts_waiting");
}

double outcome(int port, const std::string& name) {
  return metric(port, "espalier_requests_total{outcome=\"" + name + "\"}");
}

// Waits until the server writes, or has waiting, this many texts; false after some seconds.
bool await_texts(int port, int n) {
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (n_texts(port) != n) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(10ms);
  }
  return true;
}

}  // namespace

TEST_CASE("the texts of a client that leaves are cancelled, streamed or not, written or waiting", "[serve][leaving]") {
  server_process server({"--policy", "chain", "--max-texts", "2"});
  const int port = server.port();
  double n_cancelled = 0;
  for (const bool stream : {false, true}) {
    for (const int n : {1, 3}) {
      for (const std::string how : {"closes", "resets", "says that it is done", "sends more and closes"}) {
        INFO("a client that " << how << ", of " << n << " texts, " << (stream ? "streamed" : "whole"));
        auto client = std::make_unique<raw_client>(port);
        // A long text: the end token is forbidden.
        client->send(post("/v1/completions",
                          "{\"prompt\": \"The king\", \"max_tokens\": 1000, \"logit_bias\": {\"2\": "
                          "-100}, \"n\": " +
                              std::to_string(n) + ", \"stream\": " + (stream ? "true}" : "false}")));
        REQUIRE(await_texts(port, n));
        if (how == "says that it is done") {
          client->finish();
        } else {
          if (how == "resets") client->reset_at_end();
          if (how == "sends more and closes") client->send("GET /health HTTP/1.1\r\n\r\n");
          client.reset();
        }
        CHECK(await_texts(port, 0));
        // The text ends before its request is counted.
        for (int i = 0; i < 100 && outcome(port, "cancelled") == n_cancelled; ++i)
          std::this_thread::sleep_for(10ms);
        CHECK(outcome(port, "cancelled") == ++n_cancelled);
        CHECK(outcome(port, "ok") == 0);
      }
    }
  }
}
