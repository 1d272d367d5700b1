// SPDX-License-Identifier: BSL-1.0
// Many clients at once, of all kinds. No text is lost, none is another's, and each is the one that a decoder
// alone writes.
#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <latch>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../examples/serve/whole_characters.hpp"
#include "alone.hpp"
#include "catch.hpp"
#include "generate/tiny_hybrid.hpp"
#include "program.hpp"
#include "scratch.hpp"

namespace {

using nlohmann::json;
using namespace std::chrono_literals;

constexpr auto json_type = "application/json";

enum class manner { whole, streaming, leaving, gone_at_once, not_reading, not_json, too_long, cut_short };

manner manner_of(int client) {
  switch (client % 20) {
    case 3:
      return manner::leaving;
    case 7:
      return client < 60 ? manner::not_reading : manner::whole;
    case 9:
      return manner::not_json;
    case 11:
      return manner::too_long;
    case 13:
      return manner::cut_short;
    case 17:
      return manner::gone_at_once;
    default:
      return client % 2 == 0 ? manner::streaming : manner::whole;
  }
}

struct asked {
  bool chat = false;
  std::int32_t n = 1;
  lone_writer::request text;
};

// Each client has a prompt and a seed of its own, and one of several ways to sample.
asked request_of(int client) {
  asked r;
  r.chat = client % 5 == 4;
  r.n = client % 10 == 6 ? 3 : 1;
  const std::string number = std::to_string(client);
  r.text.prompt = r.chat ? "How much are " + number + " pencils?" : "Chapter " + number + ". The king of France said";
  r.text.seed = 1000 + static_cast<std::uint64_t>(client);
  r.text.temperature = client % 4 == 0 ? 0.0F : (client % 4 == 1 ? 0.75F : 1.0F);
  r.text.top_p = client % 3 == 0 ? 0.875F : 1.0F;
  r.text.max_tokens = 8 + client % 9;
  if (client % 8 == 5) r.text.stop = {"e", " a"};
  return r;
}

json body_of(const asked& r, bool stream) {
  json body = {{"seed", r.text.seed},
               {"temperature", r.text.temperature},
               {"max_tokens", r.text.max_tokens},
               {"n", r.n},
               {"top_p", r.text.top_p},
               {"stream", stream},
               {"user", "a test"},
               {"stop", r.text.stop}};
  if (r.chat) {
    body["messages"] = {{{"role", "user"}, {"content", r.text.prompt}}};
  } else {
    body["prompt"] = r.text.prompt;
  }
  if (stream) body["stream_options"] = {{"include_usage", true}};
  return body;
}

const char* path_of(const asked& r) {
  return r.chat ? "/v1/chat/completions" : "/v1/completions";
}

// What a client got.
struct got {
  int status = 0;
  std::string id;
  std::vector<std::string> texts, ends;
  json usage;
  std::string fault;  // what was wrong with the reply; empty: nothing
};

void put_choice(got& g, const json& choice, const std::string& text) {
  const auto i = choice.at("index").get<std::size_t>();
  g.texts.at(i) += text;
  if (!choice.at("finish_reason").is_null()) g.ends.at(i) = choice.at("finish_reason");
}

void read_whole(got& g, const asked& r, const std::string& body) {
  const json reply = json::parse(body);
  g.id = reply.at("id");
  g.usage = reply.at("usage");
  for (const json& choice : reply.at("choices"))
    put_choice(g, choice, r.chat ? choice.at("message").at("content") : choice.at("text"));
}

// The events of a stream, one after the other.
void read_stream(got& g, const asked& r, const std::string& body) {
  std::size_t at = 0;
  bool done = false;
  while (at < body.size()) {
    const std::size_t end = body.find("\n\n", at);
    if (end == std::string::npos || body.compare(at, 6, "data: ") != 0 || done) throw std::runtime_error("no event");
    const std::string data = body.substr(at + 6, end - at - 6);
    at = end + 2;
    done = data == "[DONE]";
    if (done) continue;
    const json chunk = json::parse(data);
    if (!g.id.empty() && g.id != chunk.at("id")) throw std::runtime_error("another's event");
    g.id = chunk.at("id");
    if (!chunk.at("usage").is_null()) g.usage = chunk.at("usage");
    for (const json& choice : chunk.at("choices"))
      put_choice(g, choice, r.chat ? choice.at("delta").value("content", "") : choice.at("text").get<std::string>());
  }
  if (!done) throw std::runtime_error("no [DONE]");
}

got ask(int port, const asked& r, bool stream) {
  got g;
  g.texts.resize(static_cast<std::size_t>(r.n));
  g.ends.resize(static_cast<std::size_t>(r.n));
  httplib::Client client("127.0.0.1", port);
  client.set_read_timeout(120s);
  const auto reply = client.Post(path_of(r), body_of(r, stream).dump(), json_type);
  if (!reply) {
    g.fault = "no reply: " + httplib::to_string(reply.error());
    return g;
  }
  g.status = reply->status;
  try {
    (stream ? read_stream : read_whole)(g, r, reply->body);
  } catch (const std::exception& error) {
    g.fault = error.what() + (": " + reply->body.substr(0, 300));
  }
  return g;
}

// Clients that do not behave: the status they get, 0 where they get none.
int misbehave(int port, const asked& r, manner how, std::deque<raw_client>& kept, std::mutex& keeping) {
  json body = body_of(r, true);
  switch (how) {
    case manner::leaving: {
      httplib::Client client("127.0.0.1", port);
      client.set_read_timeout(120s);
      body["max_tokens"] = 600;
      httplib::Request request;
      request.method = "POST";
      request.path = path_of(r);
      request.body = body.dump();
      request.set_header("Content-Type", json_type);
      request.content_receiver = [](const char*, std::size_t, std::uint64_t, std::uint64_t) { return false; };
      return client.send(request) ? 200 : 0;
    }
    case manner::gone_at_once:
      raw_client(port).send(post(path_of(r), body_of(r, r.text.seed % 2 == 0).dump()));
      return 0;
    case manner::not_reading: {
      body["max_tokens"] = 600;
      body[r.chat ? "top_logprobs" : "logprobs"] = 5;
      if (r.chat) body["logprobs"] = true;
      const std::lock_guard lock(keeping);
      kept.emplace_back(port, 4096).send(post(path_of(r), body.dump()));
      return 0;
    }
    default: {
      std::string text = body.dump();
      std::string request = post(path_of(r), text);
      if (how == manner::not_json) request = post(path_of(r), text.substr(0, text.size() / 2));
      if (how == manner::too_long) request = post(path_of(r), text + std::string(20000, ' '));
      if (how == manner::cut_short) request.resize(request.size() - 20);
      const raw_client client(port);
      client.send(request);
      client.finish();
      const std::string reply = client.receive(30s);
      return reply.size() > 12 ? std::stoi(reply.substr(9, 3)) : 0;
    }
  }
}

double metric(int port, const std::string& name) {
  const auto reply = httplib::Client("127.0.0.1", port).Get("/metrics");
  REQUIRE(reply);
  const std::size_t at = reply->body.find("\n" + name + " ");
  REQUIRE(at != std::string::npos);
  return std::stod(reply->body.substr(at + name.size() + 2));
}

// Checks a server with these arguments, and models or the bundled ones.
void serve_clients(int n_clients, std::vector<std::string> arguments, const std::string& models = "") {
  arguments.insert(arguments.end(),
                   {"--max-waiting", "300", "--max-body", "10000", "--write-timeout", "2", "--read-timeout", "20"});
  server_process server(arguments, "", models);
  const int port = server.port();
  std::vector<got> replies(static_cast<std::size_t>(n_clients));
  std::vector<int> statuses(static_cast<std::size_t>(n_clients));
  std::deque<raw_client> kept;
  std::mutex keeping;
  {
    std::latch all(n_clients);
    std::vector<std::jthread> clients;
    for (int i = 0; i < n_clients; ++i) {
      clients.emplace_back([&, i] {
        all.arrive_and_wait();
        const manner how = manner_of(i);
        if (how == manner::whole || how == manner::streaming) {
          replies[static_cast<std::size_t>(i)] = ask(port, request_of(i), how == manner::streaming);
        } else {
          statuses[static_cast<std::size_t>(i)] = misbehave(port, request_of(i), how, kept, keeping);
        }
      });
    }
  }

  lone_writer alone(models);
  int n_good = 0, n_lost = 0, n_mixed_up = 0, n_leaving = 0, n_wrong = 0;
  std::set<std::string> ids;
  for (int i = 0; i < n_clients; ++i) {
    INFO("client " << i);
    const auto at = static_cast<std::size_t>(i);
    const int expected[] = {0, 0, 0, 0, 0, 400, 413, 400};
    const manner how = manner_of(i);
    if (how != manner::whole && how != manner::streaming) {
      CHECK(statuses[at] == expected[static_cast<std::size_t>(how)]);
      if (how == manner::leaving || how == manner::not_reading) ++n_leaving;
      if (expected[static_cast<std::size_t>(how)] != 0) ++n_wrong;
      continue;
    }
    const asked r = request_of(i);
    const got& g = replies[at];
    ++n_good;
    CHECK(g.fault == "");
    CHECK(g.status == 200);
    if (g.status != 200 || !g.fault.empty()) {
      ++n_lost;
      continue;
    }
    CHECK(ids.insert(g.id).second);
    lone_writer::request one = r.text;
    if (r.chat) {
      one.prompt = "Question: " + r.text.prompt + "\nAnswer:";
      one.stop.push_back("\nQuestion:");
    }
    std::int32_t n_written = 0;
    for (std::int32_t k = 0; k < r.n; ++k) {
      one.stream = static_cast<std::uint32_t>(k);
      const lone_writer::text expected_text = alone.write(one);
      n_written += expected_text.n_tokens;
      const std::string& text = g.texts[static_cast<std::size_t>(k)];
      CHECK(text == serve::whole_characters::of(expected_text.bytes));
      if (text != serve::whole_characters::of(expected_text.bytes)) ++n_mixed_up;
      CHECK(g.ends[static_cast<std::size_t>(k)] == (expected_text.stopped ? "stop" : "length"));
    }
    CHECK(g.usage.at("completion_tokens") == n_written);
    CHECK(g.usage.at("prompt_tokens") == alone.n_prompt_tokens(one.prompt));
  }
  WARN(n_clients << " clients, of whom " << n_good << " behave: " << n_lost << " texts lost, " << n_mixed_up
                 << " mixed up");
  CHECK(n_lost == 0);
  CHECK(n_mixed_up == 0);

  // Who has left or does not read is cancelled, the latter when writing to it times out; nothing is left over.
  double n_running = 0, n_ok = 0, n_cancelled = 0;
  const auto is_settled = [&] {
    n_running = metric(port, "espalier_texts_running") + metric(port, "espalier_texts_waiting");
    n_ok = metric(port, "espalier_requests_total{outcome=\"ok\"}");
    n_cancelled = metric(port, "espalier_requests_total{outcome=\"cancelled\"}");
    return n_running == 0 && n_ok + n_cancelled == n_clients - n_wrong;
  };
  const auto end = std::chrono::steady_clock::now() + 30s;
  while (!is_settled() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(100ms);
  CHECK(n_running == 0);
  // A short text may be written before the server sees that its client has gone.
  CHECK(n_ok >= n_good);
  CHECK(n_cancelled >= n_leaving);
  CHECK(n_ok + n_cancelled == n_clients - n_wrong);
  CHECK(metric(port, "espalier_requests_total{outcome=\"invalid\"}") == n_wrong);
  CHECK(metric(port, "espalier_requests_total{outcome=\"failed\"}") == 0);
  CHECK(metric(port, "espalier_tokens_written_total") > 1000);
  CHECK(metric(port, "espalier_time_to_first_token_seconds_count") >= n_good);
  const auto health = httplib::Client("127.0.0.1", port).Get("/health");
  REQUIRE(health);
  CHECK(health->status == 200);
  CHECK(ask(port, request_of(0), true).texts == replies[0].texts);

  server.tell_to_end();
  CHECK(server.wait(20s) == 0);
}

}  // namespace

TEST_CASE("two hundred clients at once get their own texts, whoever else leaves, stalls or sends nonsense",
          "[serve][load]") {
  serve_clients(200, {"--costs", SERVE_MODELS "/selector/costs.json"});
}

TEST_CASE("clients of a hybrid get their own texts, whatever drafts them", "[serve][load]") {
  const std::string folder = scratch();
  const tiny_hybrid target{.positions = 1024};
  target.write(folder + "/target");
  tiny_hybrid draft = target;
  draft.noise = 0.1F;
  draft.write(folder + "/draft");
  // Of 8 texts, few find room for their longest form in 1024 tokens of cache.
  serve_clients(60, {"--drafter", "text", "--policy", "chain", "--cache-tokens", "1024"}, folder + "/target");
  serve_clients(60, {"--draft", folder + "/draft", "--policy", "dynatree"}, folder + "/target");
}
