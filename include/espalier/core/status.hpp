// SPDX-License-Identifier: BSL-1.0
#pragma once

namespace espalier {

//! The state of a text: that it has not begun, that it goes on, or why it stopped. Running out of room is a status, not
//! an error.
enum class status {
  idle,  //!< no text has begun
  running,
  stop_token,       //!< a stop token was committed
  stop_string,      //!< the text ends with a stop string
  length,           //!< the requested number of tokens is written
  context_full,     //!< the cache has no slot left for another token
  nothing_allowed,  //!< the processor allows no token, or gives a number that is no logit
  failed,           //!< a static_decoder met an error, which its message() tells
};

//! The status in words, for people.
constexpr const char* to_string(status s) {
  switch (s) {
    case status::idle:
      return "idle";
    case status::running:
      return "running";
    case status::stop_token:
      return "stop token";
    case status::stop_string:
      return "stop string";
    case status::length:
      return "length";
    case status::context_full:
      return "context full";
    case status::nothing_allowed:
      return "nothing allowed";
    case status::failed:
      return "failed";
  }
  return "unknown";
}

}  // namespace espalier
