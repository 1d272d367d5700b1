// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace serve {

//! A request that is refused: what() is a sentence that says what was wrong and what is allowed. The other members are
//! those of OpenAI's error object, and the status of the HTTP reply.
struct api_error : std::runtime_error {
  api_error(int http_status, const std::string& message, std::string of_param = {}, std::string with_code = {})
      : std::runtime_error(message), status(http_status), param(std::move(of_param)), code(std::move(with_code)) {}

  //! The kind of error, by OpenAI's name.
  const char* type() const {
    if (status == 401) return "authentication_error";
    if (status == 429) return "rate_limit_error";
    return status < 500 ? "invalid_request_error" : "server_error";
  }

  int status;
  std::string param;  //!< the field that is wrong; empty if none is
  std::string code;   //!< empty if there is none
};

}  // namespace serve
