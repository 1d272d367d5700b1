// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <httplib.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "../../examples/generate/text_task.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"

namespace bench {

//! A running server of llama.cpp (llama-server), which writes one text at a time. It drafts as it was started to.
//! Seconds are those that it reports for reading the prompt and for writing, without the time of HTTP.
//!
//! Errors      input_error that names the server if it cannot be reached, or if its answer is not llama-server's
class llama_server {
 public:
  explicit llama_server(std::string url) : url_(std::move(url)), client_(url_) {
    client_.set_keep_alive(true);
    client_.set_tcp_nodelay(true);
    client_.set_read_timeout(std::chrono::minutes(10));
  }

  generate::written_text write(std::span<const espalier::token_id> prompt, int max_tokens, float temperature,
                               std::span<const espalier::token_id> ends) {
    const nlohmann::json asked = {{"prompt", std::vector<espalier::token_id>(prompt.begin(), prompt.end())},
                                  {"n_predict", max_tokens},
                                  {"temperature", temperature},
                                  {"samplers", {"temperature"}},
                                  {"cache_prompt", false},
                                  {"return_tokens", true}};
    const httplib::Result answer = client_.Post("/completion", asked.dump(), "application/json");
    if (!answer) refuse("does not answer: " + httplib::to_string(answer.error()) + ".");
    if (answer->status != 200) refuse("refuses: " + answer->body);
    try {
      return text_of(nlohmann::json::parse(answer->body), ends);
    } catch (const nlohmann::json::exception& error) {
      refuse(std::string("does not answer as llama-server does: ") + error.what());
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    espalier::raise<espalier::input_error>("the server ", url_, " ", why);
  }

  static generate::written_text text_of(const nlohmann::json& answer, std::span<const espalier::token_id> ends) {
    generate::written_text text;
    text.tokens = answer.at("tokens").get<std::vector<espalier::token_id>>();
    // The token at which a text ended is not sent.
    const bool has_ended = answer.at("stop_type") == "eos";
    if (has_ended && !ends.empty() && (text.tokens.empty() || text.tokens.back() != ends.front()))
      text.tokens.push_back(ends.front());
    const nlohmann::json& timings = answer.at("timings");
    espalier::statistics& sum = text.statistics;
    sum.texts = 1;
    sum.tokens = static_cast<std::int64_t>(text.tokens.size());
    sum.drafted = timings.value("draft_n", std::int64_t{0});
    sum.accepted = timings.value("draft_n_accepted", std::int64_t{0});
    sum.rounds = std::max<std::int64_t>(1, sum.tokens - sum.accepted);
    sum.first_tokens = 1;
    sum.first_token_seconds = timings.at("prompt_ms").get<double>() / 1e3;
    sum.seconds.target_forward = sum.first_token_seconds + timings.at("predicted_ms").get<double>() / 1e3;
    return text;
  }

  std::string url_;
  httplib::Client client_;
};

}  // namespace bench
