// SPDX-License-Identifier: BSL-1.0
#include "http_server.hpp"

#include <fmt/format.h>
#include <httplib.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "../models/usage_error.hpp"
#include "api_error.hpp"
#include "api_reply.hpp"
#include "background.hpp"
#include "connection.hpp"
#include "event_reader.hpp"
#include "listener.hpp"
#include "secret.hpp"
#include "token_request.hpp"

namespace serve {

namespace {

using httplib::Request;
using httplib::Response;

constexpr auto is_json = "application/json";
constexpr std::chrono::milliseconds glance{100};  // time without events after which the client is looked for

// Bytes of a body whose reading takes a processor so long that it must give way to the texts that are being written.
constexpr std::size_t long_body = 1 << 14;

// Returns read(), called in the background if the body is long.
template <class FunctionT>
auto read_body(const std::string& body, FunctionT&& read) {
  return body.size() < long_body ? read() : in_background(std::forward<FunctionT>(read));
}

struct client_has_left {};

// Waits for the next event, as long as the client stays. It is looked for at each event, too: a model may write without
// ever being silent for long.
text_event next_event(event_reader& events) {
  for (;;) {
    auto event = events.next(glance);
    if (connection::current()->is_closed()) throw client_has_left();
    if (event) return *std::move(event);
  }
}

void set_json(Response& response, int status, const json& body) {
  response.status = status;
  response.set_content(to_text(body), is_json);
}

api_error failure(const text_event& event) {
  return event.is_clients_fault ? api_error(422, event.message, event.field, "rule_too_large")
                                : api_error(500, event.message);
}

const char* outcome_of(const api_error& error) {
  if (error.status == 401) return "unauthorized";
  if (error.status == 429 || error.status == 503) return "refused";
  return error.status < 500 ? "invalid" : "failed";
}

// A reply that is written and sent event by event.
class event_stream {
 public:
  event_stream(std::shared_ptr<const api_request> request, event_reader events, const std::string& model,
               const espalier::tokenizer& tokenizer, metrics& counts)
      : request_(std::move(request)),
        events_(std::move(events)),
        reply_(*request_, model, tokenizer),
        counts_(counts) {}

  // Sends the whole reply; false if the client does not take it.
  bool send(httplib::DataSink& sink) {
    const char* outcome = "cancelled";
    try {
      if (write(sink)) outcome = "ok";
    } catch (const client_has_left&) {
    } catch (const api_error& error) {
      outcome = "failed";
      put(sink, to_text(error_object(error)));
    }
    counts_.count_request(outcome);
    if (outcome == std::string_view("cancelled") || !put(sink, "[DONE]")) return false;
    sink.done();
    return true;
  }

 private:
  static bool put(httplib::DataSink& sink, const std::string& data) {
    const std::string event = "data: " + data + "\n\n";
    return sink.write(event.data(), event.size());
  }

  bool write(httplib::DataSink& sink) {
    for (const json& chunk : reply_.opening())
      if (!put(sink, to_text(chunk))) return false;
    while (!reply_.complete()) {
      const text_event event = next_event(events_);
      if (event.what == text_event::kind::failed) throw failure(event);
      const json chunk = reply_.chunk(event);
      if (!chunk.is_null() && !put(sink, to_text(chunk))) return false;
    }
    const json last = reply_.closing();
    return last.is_null() || put(sink, to_text(last));
  }

  std::shared_ptr<const api_request> request_;
  event_reader events_;
  api_reply reply_;
  metrics& counts_;
};

// The length of the body that a request declares; -1: in chunks.
std::int64_t said_length(const Request& request) {
  const bool in_chunks = request.has_header("Transfer-Encoding");
  const std::size_t n_lengths = request.get_header_value_count("Content-Length");
  if (n_lengths + (in_chunks ? 1U : 0U) > 1)
    throw api_error(400, "A request has one Content-Length, or Transfer-Encoding: chunked.");
  if (in_chunks) return -1;
  if (n_lengths == 0) throw api_error(411, "Content-Length is missing.");
  const std::string text = request.get_header_value("Content-Length");
  std::int64_t length = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  if (error == std::errc::result_out_of_range) return (std::numeric_limits<std::int64_t>::max)();
  if (error != std::errc() || end != text.data() + text.size() || length < 0)
    throw api_error(400, "Content-Length must be a whole number of bytes.");
  return length;
}

}  // namespace

struct http_server::parts {
  engine& texts;
  metrics& counts;
  const espalier::tokenizer& tokenizer;
  const request_rules rules;
  const http_options options;
  listener http{options};
  int port = 0;
  std::int64_t started =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();

  void route();
  void check(const Request& request) const;
  std::string body_of(const Response& response, const httplib::ContentReader& read) const;
  void allow_pages(const Request& request, Response& response) const;
  bool is_preflight(const Request& request) const;
  void write_text(endpoint to, const Request& request, Response& response, const httplib::ContentReader& read);
  void write_whole(const api_request& request, event_reader& events, Response& response);
  event_reader submit(const api_request& request);
  json model_object() const;
  api_error body_too_long() const;
  static void refuse(Response& response, const api_error& error);
  static void explain(Response& response);
};

void http_server::parts::refuse(Response& response, const api_error& error) {
  if (error.status == 401) response.set_header("WWW-Authenticate", "Bearer");
  if (error.status == 429) response.set_header("Retry-After", "1");
  set_json(response, error.status, error_object(error));
}

// Adds an explanation to replies in which httplib refuses a request by itself.
void http_server::parts::explain(Response& response) {
  if (!response.body.empty()) return;
  connection* const client = connection::current();
  client->give_up_request();
  switch (client->what_failed()) {
    case connection::fault::head_too_long:
      return refuse(response, listener::head_too_long());
    case connection::fault::too_slow:
      return refuse(response, listener::too_slow());
    case connection::fault::cut_short:
      return refuse(response, api_error(400, "The request was cut short."));
    case connection::fault::none:
      return refuse(response, api_error(response.status, "This is no HTTP request that the server understands."));
  }
}

// True if a browser asks whether a web page may send a request.
bool http_server::parts::is_preflight(const Request& request) const {
  return !options.origins.empty() && request.method == "OPTIONS" && request.has_header("Origin") &&
         request.has_header("Access-Control-Request-Method");
}

// Tells a browser that the web page which asks may read the reply, if its origin is among those that may.
void http_server::parts::allow_pages(const Request& request, Response& response) const {
  if (options.origins.empty()) return;
  response.set_header("Vary", "Origin");
  const std::string origin = request.get_header_value("Origin");
  const auto is_one = [&](const std::string& allowed) { return allowed == "*" || allowed == origin; };
  if (origin.empty() || std::none_of(options.origins.begin(), options.origins.end(), is_one)) return;
  response.set_header("Access-Control-Allow-Origin", origin);
  if (!is_preflight(request)) return;
  response.set_header("Access-Control-Allow-Methods", "GET, POST");
  response.set_header("Access-Control-Allow-Headers", request.has_header("Access-Control-Request-Headers")
                                                          ? request.get_header_value("Access-Control-Request-Headers")
                                                          : std::string("Authorization, Content-Type"));
  response.set_header("Access-Control-Max-Age", "600");
}

// Checks of a request that are possible before its body is read.
void http_server::parts::check(const Request& request) const {
  const bool may_have_body = request.method != "GET" && request.method != "HEAD";
  const std::string& path = request.path;
  constexpr std::string_view bearer = "Bearer ";
  if (!options.api_key.empty() && path != "/health") {
    const std::string given = request.get_header_value("Authorization");
    if (given.compare(0, bearer.size(), bearer) != 0 ||
        !is_secret(std::string_view(given).substr(bearer.size()), options.api_key)) {
      throw api_error(401, "The API key is missing or wrong: send it as \"Authorization: Bearer KEY\".", "",
                      "invalid_api_key");
    }
  }
  const bool writes =
      path == "/v1/completions" || path == "/v1/chat/completions" || path == "/tokenize" || path == "/detokenize";
  constexpr std::string_view of_model = "/v1/models/";
  const bool reads = path == "/v1/models" || path == "/health" || path == "/metrics" ||
                     (path.rfind(of_model, 0) == 0 && path.size() > of_model.size());
  if (path == "/v1/responses" || path.rfind("/v1/responses/", 0) == 0) {
    throw api_error(404,
                    "The Responses API is not supported: send the conversation as messages to /v1/chat/completions.",
                    "", "unknown_url");
  }
  if (!writes && !reads) throw api_error(404, fmt::format("There is no {}.", path), "", "unknown_url");
  if (writes != may_have_body || (writes && request.method != "POST")) {
    throw api_error(405, fmt::format("{} takes {} only, not {}.", path, writes ? "POST" : "GET", request.method), "",
                    "method_not_allowed");
  }
  if (!writes) return;
  if (request.get_header_value("Content-Type").rfind(is_json, 0) != 0)
    throw api_error(415, "The body must be JSON, and Content-Type say so: application/json.");
  if (said_length(request) > options.max_body) throw body_too_long();
}

api_error http_server::parts::body_too_long() const {
  return api_error(413, fmt::format("The body has more than {} bytes.", options.max_body), "", "body_too_long");
}

std::string http_server::parts::body_of(const Response& response, const httplib::ContentReader& read) const {
  std::string body;
  bool too_long = false;
  const bool is_whole = read([&](const char* data, std::size_t size) {
    too_long = body.size() + size > static_cast<std::size_t>(options.max_body);
    if (!too_long) body.append(data, size);
    return !too_long;
  });
  if (is_whole) return body;
  connection* const client = connection::current();
  client->give_up_request();
  if (too_long) throw body_too_long();
  if (client->what_failed() == connection::fault::too_slow) throw listener::too_slow();
  if (response.status == 415) throw api_error(415, "The body's Content-Encoding is not supported.");
  throw api_error(400, "The body was cut short.");
}

event_reader http_server::parts::submit(const api_request& request) {
  try {
    return texts.submit(request.texts);
  } catch (const queue_full& error) {
    throw api_error(429, error.what(), "", "queue_full");
  } catch (const closing_down& error) {
    throw api_error(503, error.what(), "", "closing_down");
  }
}

void http_server::parts::write_text(endpoint to, const Request& request, Response& response,
                                    const httplib::ContentReader& read) {
  try {
    const std::string body = body_of(response, read);
    const auto asked =
        std::make_shared<const api_request>(read_body(body, [&] { return read_request(to, body, rules, tokenizer); }));
    event_reader events = submit(*asked);
    const text_event first = next_event(events);
    if (first.what == text_event::kind::refused) throw api_error(400, first.message, "", "invalid_value");
    if (first.what == text_event::kind::failed) throw failure(first);
    if (!asked->stream) return write_whole(*asked, events, response);

    const auto stream = std::make_shared<event_stream>(asked, std::move(events), rules.model, tokenizer, counts);
    response.set_header("Cache-Control", "no-cache");
    const auto send = [stream](std::size_t, httplib::DataSink& sink) { return stream->send(sink); };
    if (request.version == "HTTP/1.0") {
      connection::current()->give_up_request();
      response.set_content_provider("text/event-stream", send);
    } else {
      response.set_chunked_content_provider("text/event-stream", send);
    }
  } catch (const client_has_left&) {
    counts.count_request("cancelled");
    connection::current()->give_up_request();
    response.status = 499;  // never seen by the client
  } catch (const api_error& error) {
    counts.count_request(outcome_of(error));
    refuse(response, error);
  }
}

void http_server::parts::write_whole(const api_request& request, event_reader& events, Response& response) {
  api_reply reply(request, rules.model, tokenizer);
  while (!reply.complete()) {
    const text_event event = next_event(events);
    if (event.what == text_event::kind::failed) throw failure(event);
    reply.add(event);
  }
  counts.count_request("ok");
  set_json(response, 200, reply.whole());
}

json http_server::parts::model_object() const {
  return {{"id", rules.model}, {"object", "model"}, {"created", started}, {"owned_by", "espalier"}};
}

void http_server::parts::route() {
  using handled = httplib::Server::HandlerResponse;
  http.set_payload_max_length(static_cast<std::size_t>(options.max_body));
  http.set_pre_routing_handler([this](const Request& request, Response& response) {
    connection* const client = connection::current();
    if (is_preflight(request)) {
      response.status = 204;
      return handled::Handled;
    }
    try {
      check(request);
      if (request.method == "GET" && (request.has_header("Content-Length") || request.has_header("Transfer-Encoding")))
        client->give_up_request();
      return handled::Unhandled;
    } catch (const api_error& error) {
      client->give_up_request();
      counts.count_request(outcome_of(error));
      refuse(response, error);
      if (error.status == 405) {
        const bool reads =
            request.path.rfind("/v1/models", 0) == 0 || request.path == "/health" || request.path == "/metrics";
        response.set_header("Allow", reads ? "GET, HEAD" : "POST");
      }
      return handled::Handled;
    }
  });
  http.set_post_routing_handler([this](const Request& request, Response& response) {
    allow_pages(request, response);
    response.headers.erase("Keep-Alive");
    if (!connection::current()->gave_up()) return;
    response.headers.erase("Connection");
    response.set_header("Connection", "close");
  });
  http.set_error_handler(httplib::Server::HandlerWithResponse([](const Request&, Response& response) {
    explain(response);
    return handled::Handled;
  }));
  http.set_exception_handler([](const Request&, Response& response, std::exception_ptr) {
    connection::current()->give_up_request();
    refuse(response, api_error(500, "The server could not answer."));
  });

  for (const auto& [path, from] :
       {std::pair{"/v1/completions", endpoint::completions}, std::pair{"/v1/chat/completions", endpoint::chat}}) {
    http.Post(path, [this, to = from](const Request& request, Response& response, const httplib::ContentReader& read) {
      write_text(to, request, response, read);
    });
  }
  for (const auto& [path, reply_to] : {std::pair{"/tokenize", &tokenize}, std::pair{"/detokenize", &detokenize}}) {
    http.Post(path,
              [this, reply_to = reply_to](const Request&, Response& response, const httplib::ContentReader& read) {
                try {
                  const std::string body = body_of(response, read);
                  set_json(response, 200, read_body(body, [&] { return reply_to(body, rules, tokenizer); }));
                } catch (const api_error& error) {
                  refuse(response, error);
                }
              });
  }
  http.Get("/v1/models", [this](const Request&, Response& response) {
    set_json(response, 200, {{"object", "list"}, {"data", json::array({model_object()})}});
  });
  http.Get("/v1/models/(.+)", [this](const Request& request, Response& response) {
    if (request.matches[1] == rules.model) return set_json(response, 200, model_object());
    refuse(response, api_error(404, fmt::format("There is no such model; this server has \"{}\".", rules.model),
                               "model", "model_not_found"));
  });
  http.Get("/health", [](const Request&, Response& response) { set_json(response, 200, {{"status", "ok"}}); });
  http.Get("/metrics", [this](const Request&, Response& response) {
    response.set_content(counts.text(), "text/plain; version=0.0.4; charset=utf-8");
  });
}

http_server::http_server(engine& texts, metrics& counts, const espalier::tokenizer& tokenizer,
                         const request_rules& rules, const http_options& options)
    : parts_(new parts{texts, counts, tokenizer, rules, options}) {
  parts_->route();
  parts_->port = parts_->http.bind();
  if (parts_->port < 0)
    throw models::usage_error(fmt::format("It cannot listen at {}, port {}.", options.host, options.port));
}

http_server::~http_server() = default;

int http_server::port() const {
  return parts_->port;
}

bool http_server::listen() {
  return parts_->http.serve();
}

void http_server::end() {
  parts_->http.end();
}

}  // namespace serve
