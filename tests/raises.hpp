// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>
#include <string_view>

// The message of the ErrorT that a call raises, empty if it raises none. Any other error passes through.
template <class ErrorT, class CallT>
std::string message_of(CallT&& call) {
  try {
    call();
  } catch (const ErrorT& e) {
    return e.what();
  }
  return {};
}

// Whether all the pieces occur in a message.
template <class... PiecesT>
bool says(std::string_view message, const PiecesT&... pieces) {
  return !message.empty() && ((message.find(pieces) != std::string_view::npos) && ...);
}
