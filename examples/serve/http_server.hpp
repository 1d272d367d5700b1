// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <memory>
#include <string>

#include "api_request.hpp"
#include "engine.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"
#include "http_options.hpp"
#include "metrics.hpp"

namespace serve {

//! OpenAI's API over HTTP: reads requests, passes them to the engine, and sends its events.
//!
//! POST /v1/completions, /v1/chat/completions, /tokenize, /detokenize; GET /v1/models, /v1/models/NAME, /health, /metrics.
//!
//! Errors      the constructor: models::usage_error if it cannot listen at host and port
class http_server {
 public:
  http_server(engine& texts, metrics& counts, const espalier::tokenizer& tokenizer, const request_rules& rules,
              const http_options& options);
  ~http_server();

  int port() const;
  //! Serves until another thread calls end(), which lets replies that have begun be sent. False if it had to stop
  //! earlier.
  bool listen();
  void end();

 private:
  struct parts;
  std::unique_ptr<parts> parts_;
};

}  // namespace serve
