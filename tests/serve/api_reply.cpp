// SPDX-License-Identifier: BSL-1.0
#include "../examples/serve/api_reply.hpp"

#include <string>
#include <vector>

#include "../examples/serve/metrics.hpp"
#include "../examples/serve/whole_characters.hpp"
#include "catch.hpp"

using serve::json;
using serve::text_event;

namespace {

const espalier::tokenizer& tokenizer() {
  static const espalier::tokenizer loaded = espalier::tokenizer::load(SERVE_MODELS "/tokenizer.model");
  return loaded;
}

// The event of a round that writes this text.
text_event round_of(const std::string& text, espalier::status state = espalier::status::running,
                    std::int32_t choice = 0) {
  text_event event{.choice = choice, .bytes = text, .state = state};
  for (const espalier::token_id token : tokenizer().encode(text))
    event.tokens.push_back({{token, -0.5}, {{token, -0.5}, {5, -2.0}}});
  event.n_tokens = static_cast<std::int32_t>(event.tokens.size());
  return event;
}

serve::api_request request_of(serve::endpoint from, std::int32_t n, bool log_probs) {
  serve::api_request request;
  request.from = from;
  request.texts.prompts = {{1, 2, 3}};
  request.texts.n = request.n = n;
  request.shows_log_probs = log_probs;
  request.texts.options.log_probs = log_probs ? 2 : -1;
  request.include_usage = true;
  return request;
}

}  // namespace

TEST_CASE("bytes become whole characters, however they are cut", "[serve]") {
  const std::string bytes = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xFFz\xE2\x82";
  const std::string expected = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xEF\xBF\xBDz\xEF\xBF\xBD";
  CHECK(serve::whole_characters::of(bytes) == expected);
  for (std::size_t first = 0; first <= bytes.size(); ++first) {
    for (std::size_t second = first; second <= bytes.size(); ++second) {
      serve::whole_characters whole;
      std::string text = whole.push(bytes.substr(0, first));
      text += whole.push(bytes.substr(first, second - first));
      text += whole.push(bytes.substr(second));
      CHECK(text + whole.finish() == expected);
    }
  }
}

TEST_CASE("a whole reply has every text, its end and its log-probabilities", "[serve]") {
  const auto request = request_of(serve::endpoint::completions, 2, true);
  serve::api_reply reply(request, "tiny", tokenizer());
  reply.add(round_of("The king", espalier::status::running, 1));
  reply.add(round_of("A", espalier::status::stop_token, 0));
  CHECK(!reply.complete());
  reply.add(round_of(" is", espalier::status::length, 1));
  CHECK(reply.complete());
  const json whole = reply.whole();
  CHECK(whole["object"] == "text_completion");
  CHECK(whole["model"] == "tiny");
  CHECK(whole["choices"][0]["text"] == "A");
  CHECK(whole["choices"][0]["finish_reason"] == "stop");
  CHECK(whole["choices"][1]["text"] == "The king is");
  CHECK(whole["choices"][1]["finish_reason"] == "length");
  const json& log_probs = whole["choices"][1]["logprobs"];
  std::string joined;
  for (const json& token : log_probs["tokens"])
    joined += token.get<std::string>();
  CHECK(joined == "The king is");
  CHECK(log_probs["text_offset"].back() == 8);
  CHECK(log_probs["token_logprobs"].size() == log_probs["tokens"].size());
  CHECK(log_probs["top_logprobs"].size() == log_probs["tokens"].size());
  const std::size_t n = tokenizer().encode("The king").size() + 2;
  CHECK(whole["usage"] == json({{"prompt_tokens", 3}, {"completion_tokens", n}, {"total_tokens", n + 3}}));
}

TEST_CASE("tokens whose bytes are no characters keep their names apart", "[serve]") {
  const auto request = request_of(serve::endpoint::completions, 1, true);
  serve::api_reply reply(request, "tiny", tokenizer());
  std::vector<espalier::token_id> bytes = tokenizer().encode("\xF0\x9F\x98\x80");
  REQUIRE(bytes.size() >= 4);
  bytes.erase(bytes.begin(), bytes.end() - 4);
  text_event event{.bytes = "\xF0", .n_tokens = 1, .state = espalier::status::length};
  event.tokens.push_back({{bytes[0], -0.5}, {{bytes[0], -0.5}, {bytes[1], -1.5}, {1, -2.5}, {2, -3.5}}});
  reply.add(event);
  const json log_probs = reply.whole()["choices"][0]["logprobs"];
  CHECK(log_probs["tokens"] == json({"bytes:\\xf0"}));
  // Special tokens have no text: the best of them is told.
  CHECK(log_probs["top_logprobs"][0] == json({{"bytes:\\xf0", -0.5}, {"bytes:\\x9f", -1.5}, {"", -2.5}}));
}

TEST_CASE("tokens whose text is held back are told when it is shown, or never", "[serve]") {
  const auto request = request_of(serve::endpoint::chat, 1, true);
  serve::api_reply reply(request, "tiny", tokenizer());
  CHECK(reply.opening().size() == 1);
  CHECK(reply.opening()[0]["choices"][0]["delta"]["role"] == "assistant");
  text_event held = round_of("The king");
  held.bytes = "";
  CHECK(reply.chunk(held).is_null());
  text_event more = round_of(" is");
  more.bytes = "The";
  const json first = reply.chunk(more);
  CHECK(first["object"] == "chat.completion.chunk");
  CHECK(first["choices"][0]["delta"]["content"] == "The");
  CHECK(first["choices"][0]["logprobs"]["content"].size() == 1);
  CHECK(first["choices"][0]["logprobs"]["content"][0]["bytes"] == json({84, 104, 101}));
  const json last = reply.chunk({.state = espalier::status::stop_string});
  CHECK(last["choices"][0]["delta"] == json::object());
  CHECK(last["choices"][0]["finish_reason"] == "stop");
  CHECK(last["choices"][0]["logprobs"]["content"].empty());
  const json refused =
      serve::api_reply(request, "tiny", tokenizer()).chunk({.state = espalier::status::nothing_allowed});
  CHECK(refused["choices"][0]["finish_reason"] == "content_filter");
  CHECK(reply.complete());
  CHECK(reply.closing()["usage"]["completion_tokens"] == held.n_tokens + more.n_tokens);
}

TEST_CASE("a text is shown after its prompt, with the prompt's log-probabilities", "[serve]") {
  auto request = request_of(serve::endpoint::completions, 2, true);
  const std::vector<std::string> prompts{"The king", "A"};
  request.texts.prompts.clear();
  for (const std::string& prompt : prompts)
    request.texts.prompts.push_back(tokenizer().encode_prompt(prompt));
  request.echo = true;
  request.prompt_texts = prompts;
  request.texts.options.prompt_log_probs = true;
  serve::api_reply whole(request, "tiny", tokenizer()), stream(request, "tiny", tokenizer());
  std::vector<std::string> streamed(4);
  for (std::int32_t i = 0; i < 4; ++i) {
    const auto& prompt = request.texts.prompts[static_cast<std::size_t>(i / 2)];
    std::vector<text_event> events;
    // The prompt is read in parts; then the text comes.
    for (std::size_t t = 1; t < prompt.size(); ++t) {
      events.push_back({.choice = i});
      events.back().prompt.push_back({{prompt[t], -0.25}, {{prompt[t], -0.25}}});
    }
    events.push_back(round_of(" is", espalier::status::length, i));
    for (const text_event& event : events) {
      whole.add(event);
      const json chunk = stream.chunk(event);
      if (!chunk.is_null()) streamed[static_cast<std::size_t>(i)] += chunk["choices"][0]["text"].get<std::string>();
    }
  }
  CHECK(whole.complete());
  CHECK(streamed == std::vector<std::string>{"The king is", "The king is", "A is", "A is"});
  const json reply = whole.whole();
  CHECK(reply["choices"].size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    const json& choice = reply["choices"][i];
    CHECK(choice["index"] == i);
    CHECK(choice["text"] == prompts[i / 2] + " is");
    const json& log_probs = choice["logprobs"];
    const std::size_t n = request.texts.prompts[i / 2].size();
    REQUIRE(log_probs["tokens"].size() == n + tokenizer().encode(" is").size());
    CHECK(log_probs["token_logprobs"][0].is_null());
    CHECK(log_probs["top_logprobs"][0].is_null());
    CHECK(log_probs["token_logprobs"][1] == -0.25);
    CHECK(log_probs["token_logprobs"][n] == -0.5);
    CHECK(log_probs["text_offset"][0] == 0);
    CHECK(log_probs["text_offset"][n] == prompts[i / 2].size());
    std::string joined;
    for (const json& token : log_probs["tokens"])
      joined += token.get<std::string>();
    CHECK(joined == choice["text"].get<std::string>());
  }
  const std::size_t n_read = request.texts.prompts[0].size() + request.texts.prompts[1].size();
  CHECK(reply["usage"]["prompt_tokens"] == n_read);
}

TEST_CASE("a prompt without log-probabilities is shown at once, be it that nothing is written", "[serve]") {
  auto request = request_of(serve::endpoint::completions, 1, false);
  request.echo = true;
  request.prompt_texts = {"\xF0\x9F"};  // the rest of the character is written
  serve::api_reply reply(request, "tiny", tokenizer());
  reply.add({.bytes = "\x98\x80!", .n_tokens = 3, .state = espalier::status::length});
  CHECK(reply.whole()["choices"][0]["text"] == "\xF0\x9F\x98\x80!");
  serve::api_reply none(request, "tiny", tokenizer());
  CHECK(none.chunk({.state = espalier::status::length})["choices"][0]["text"] == "\xEF\xBF\xBD");
}

TEST_CASE("of several texts the most probable ones are told, the best first", "[serve]") {
  auto request = request_of(serve::endpoint::completions, 4, false);
  request.n = 2;
  request.texts.prompts = {{1, 2}, {3}};
  serve::api_reply reply(request, "tiny", tokenizer());
  const double log_probs[2][4] = {{-3, -1, -2, -4}, {-1, -1, -5, -0.5}};
  for (std::int32_t i = 0; i < 8; ++i) {
    text_event event{.choice = i, .bytes = std::to_string(i), .n_tokens = 2, .state = espalier::status::length};
    // A longer text is not worse for its length.
    for (int t = 0; t < 2; ++t)
      event.tokens.push_back({{5, log_probs[i / 4][i % 4]}, {}});
    reply.add(event);
  }
  const json whole = reply.whole();
  std::string found;
  for (const json& choice : whole["choices"]) {
    found += choice["text"].get<std::string>();
    CHECK(choice["logprobs"].is_null());
  }
  CHECK(found == "1274");
  CHECK(whole["choices"][3]["index"] == 3);
  CHECK(whole["usage"]["completion_tokens"] == 16);
  CHECK(whole["usage"]["prompt_tokens"] == 3);
}

TEST_CASE("calls of functions are told apart from the text, streamed or not", "[serve]") {
  auto request = request_of(serve::endpoint::chat, 1, false);
  request.tools = serve::tool_use{.form = {.begin = "<call>\n", .end = "\n</call>"}, .tools = {{"f", {}}, {"g", {}}}};
  const std::string text =
      "Let me see.\n<call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, \"}\"]}}\n</call>\n<call>\n{\"name\": "
      "\"g\", \"arguments\": {}}\n</call>";
  serve::api_reply whole(request, "tiny", tokenizer()), stream(request, "tiny", tokenizer());
  json calls = json::array();
  std::string content, reason;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const text_event event{.bytes = text.substr(i, 1),
                           .n_tokens = 1,
                           .state = i + 1 == text.size() ? espalier::status::stop_token : espalier::status::running};
    whole.add(event);
    const json chunk = stream.chunk(event);
    if (chunk.is_null()) continue;
    const json& choice = chunk["choices"][0];
    content += choice["delta"].value("content", "");
    for (const json& call : choice["delta"].value("tool_calls", json::array()))
      calls.push_back(call);
    if (!choice["finish_reason"].is_null()) reason = choice["finish_reason"];
  }
  CHECK(reason == "tool_calls");
  CHECK(content == "Let me see.\n");
  REQUIRE(calls.size() == 2);
  CHECK(calls[0]["index"] == 0);
  CHECK(calls[1]["index"] == 1);
  CHECK(calls[0]["function"] == json({{"name", "f"}, {"arguments", "{\"x\": [1, \"}\"]}"}}));
  CHECK(calls[1]["function"] == json({{"name", "g"}, {"arguments", "{}"}}));
  CHECK(calls[0]["id"].get<std::string>().size() == 9);
  CHECK(calls[0]["id"] != calls[1]["id"]);
  const json choice = whole.whole()["choices"][0];
  CHECK(choice["finish_reason"] == "tool_calls");
  CHECK(choice["message"]["content"] == content);
  REQUIRE(choice["message"]["tool_calls"].size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(choice["message"]["tool_calls"][i]["function"] == calls[i]["function"]);
    CHECK(choice["message"]["tool_calls"][i]["type"] == "function");
    CHECK(!choice["message"]["tool_calls"][i].contains("index"));
  }
}

TEST_CASE("a text that is only a call has no content, one that is cut short has no call", "[serve]") {
  auto request = request_of(serve::endpoint::chat, 1, false);
  request.tools = serve::tool_use{.form = {}, .tools = {{"f", {}}}, .must_call = true};
  serve::api_reply called(request, "tiny", tokenizer()), cut(request, "tiny", tokenizer());
  called.add({.bytes = "{\"name\":\"f\",\"arguments\":{}}", .n_tokens = 9, .state = espalier::status::stop_token});
  const json choice = called.whole()["choices"][0];
  CHECK(choice["message"]["content"].is_null());
  CHECK(choice["message"]["tool_calls"].size() == 1);
  CHECK(choice["finish_reason"] == "tool_calls");
  serve::api_reply full(request, "tiny", tokenizer());
  full.add({.bytes = "{\"name\":\"f\",\"arguments\":{}}", .n_tokens = 9, .state = espalier::status::length});
  CHECK(full.whole()["choices"][0]["finish_reason"] == "tool_calls");
  cut.add({.bytes = "{\"name\":\"f\",\"argum", .n_tokens = 9, .state = espalier::status::length});
  const json rest = cut.whole()["choices"][0];
  CHECK(rest["message"]["content"] == "{\"name\":\"f\",\"argum");
  CHECK(!rest["message"].contains("tool_calls"));
  CHECK(rest["finish_reason"] == "length");
}

TEST_CASE("metrics are counted and written as Prometheus reads them", "[serve]") {
  serve::metrics counts;
  counts.count_request("ok");
  counts.count_read(7);
  counts.count_round({.tokens = 3, .drafted = 5, .accepted = 2, .seconds = 0.02, .is_first = true});
  counts.count_round(
      {.tokens = 2, .drafted = 5, .accepted = 1, .seconds = 0.2, .limited_by = espalier::tree_limit::price});
  counts.count_round({.tokens = 1, .seconds = 0.2});  // nothing was drafted
  counts.set({.running = 1, .waiting = 2, .pages = 10, .pages_used = 4});
  const std::string text = counts.text();
  for (const char* line : {"espalier_requests_total{outcome=\"ok\"} 1",
                           "espalier_requests_total{outcome=\"failed\"} 0",
                           "espalier_texts_running 1",
                           "espalier_texts_waiting 2",
                           "espalier_tokens_written_total 6",
                           "espalier_rounds_limited_total{by=\"price\"} 1",
                           "espalier_rounds_limited_total{by=\"budget\"} 0",
                           "espalier_tokens_read_total 7",
                           "espalier_rounds_total 3",
                           "espalier_tokens_drafted_total 10",
                           "espalier_tokens_accepted_total 3",
                           "espalier_cache_pages 10",
                           "espalier_cache_pages_used 4",
                           "espalier_time_to_first_token_seconds_bucket{le=\"0.01\"} 0",
                           "espalier_time_to_first_token_seconds_bucket{le=\"0.025\"} 1",
                           "espalier_time_to_first_token_seconds_count 1",
                           "espalier_time_per_token_seconds_bucket{le=\"0.1\"} 2",
                           "espalier_time_per_token_seconds_bucket{le=\"+Inf\"} 3",
                           "vllm:spec_decode_num_drafts_total 2",
                           "vllm:spec_decode_num_draft_tokens_total 10",
                           "vllm:spec_decode_num_accepted_tokens_total 3",
                           "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 2",
                           "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"1\"} 1",
                           "# TYPE espalier_time_per_token_seconds histogram"}) {
    INFO(line);
    CHECK(text.find(std::string(line) + "\n") != std::string::npos);
  }
}
