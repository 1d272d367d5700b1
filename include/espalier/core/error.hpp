// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "espalier/config.hpp"

namespace espalier {

//! Base of all errors of the library. what() is a sentence for people.
struct error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

//! An option out of range, found when a part is built.
struct option_error : error {
  using error::error;
};

//! Input that does not fit: an empty prompt, a token outside the vocabulary, a wrong shape.
struct input_error : error {
  using error::error;
};

//! A model file or configuration that is cut short, contradicts itself or is not supported.
struct model_error : error {
  using error::error;
};

//! Numbers that no token may be drawn from: NaN or infinite logits, rows that are no distribution.
struct numeric_error : error {
  using error::error;
};

//! Called with the message where exceptions are disabled; must not return. Replaceable by the user.
using error_handler_type = void (*)(const char* message);

inline error_handler_type& error_handler() {
  static error_handler_type handler = [](const char* message) {
    std::fprintf(stderr, "espalier: %s\n", message);
    std::abort();
  };
  return handler;
}

namespace detail {

inline std::string in_words(std::string_view text) {
  return std::string(text);
}

template <class NumberT>
requires std::is_arithmetic_v<NumberT> std::string in_words(NumberT value) {
  if constexpr (std::is_same_v<NumberT, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_integral_v<NumberT>) {
    return std::to_string(value);
  } else {
    // Few digits where they say it all, else every digit: a value just outside a range must not look inside.
    char text[40];
    std::snprintf(text, sizeof text, "%g", static_cast<double>(value));
    if (static_cast<NumberT>(std::strtod(text, nullptr)) != value) {
      std::snprintf(text, sizeof text, "%.*g", std::numeric_limits<NumberT>::max_digits10, static_cast<double>(value));
    }
    return text;
  }
}

}  // namespace detail

//! Raises ErrorT with a message made of the pieces (text and numbers) in order.
template <class ErrorT, class... PiecesT>
[[noreturn]] void raise(const PiecesT&... pieces) {
  std::string message;
  ((message += detail::in_words(pieces)), ...);
#if ESPALIER_EXCEPTIONS
  throw ErrorT(message);
#else
  error_handler()(message.c_str());
  std::abort();
#endif
}

//! Checks that an option lies in [low, high]; NaN never does.
//!
//! Errors      option_error that names the option, its value and the range
template <class ValueT>
void require_option(std::string_view option, ValueT value, std::type_identity_t<ValueT> low,
                    std::type_identity_t<ValueT> high) {
  if (!(value >= low && value <= high)) {
    raise<option_error>("option ", option, " is ", value, ", but must lie between ", low, " and ", high, ".");
  }
}

}  // namespace espalier
