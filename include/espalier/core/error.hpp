// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "espalier/config.hpp"

#if !ESPALIER_EXCEPTIONS
#include <csetjmp>
#include <utility>
#endif
#if ESPALIER_HOSTED
#include <cstdio>
#include <cstdlib>
#include <limits>
#else
#include "espalier/core/static/message_text.hpp"
#endif

namespace espalier {

//! Base of all errors of the library. what() is a sentence for people to read.
struct error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

//! Error: an option is out of range, or does not allow what is asked for. Usually raised when a part is built.
struct option_error : error {
  using error::error;
};

//! Error: an input does not fit, such as an empty prompt, a token outside the vocabulary or a wrong shape.
struct input_error : error {
  using error::error;
};

//! Error: a model file or configuration is cut short, contradicts itself or is not supported.
struct model_error : error {
  using error::error;
};

//! Error: no token can be drawn from these numbers, such as NaN or infinite logits, or a row that is no distribution.
struct numeric_error : error {
  using error::error;
};

//! Type of a function that is called with the message of an error where exceptions are disabled. It must not return.
using error_handler_type = void (*)(const char* message);

//! The function that is called where exceptions are disabled; the user may assign another one. The default one writes
//! the message and ends the program; where ESPALIER_HOSTED is 0, it stops the processor. It is not called for errors
//! that a static_decoder or the events of a batch_decoder tell.
inline error_handler_type& error_handler() {
  static error_handler_type handler = [](const char* message) {
#if ESPALIER_HOSTED
    std::fprintf(stderr, "espalier: %s\n", message);
    std::abort();
#else
    (void)message;
    __builtin_trap();
#endif
  };
  return handler;
}

namespace detail {

#if ESPALIER_HOSTED
using message_type = std::string;

template <class NumberT>
requires std::is_arithmetic_v<NumberT> std::string in_words(NumberT value) {
  if constexpr (std::is_integral_v<NumberT>) {
    return std::to_string(value);
  } else {
    // Six digits if they give the number exactly, else all of its digits: a value just outside a range must not look as
    // if it lay inside.
    char text[40];
    std::snprintf(text, sizeof text, "%g", static_cast<double>(value));
    if (static_cast<NumberT>(std::strtod(text, nullptr)) != value) {
      std::snprintf(text, sizeof text, "%.*g", std::numeric_limits<NumberT>::max_digits10, static_cast<double>(value));
    }
    return text;
  }
}
#else
using message_type = message_text;

template <class NumberT>
auto in_words(NumberT value) {
  if constexpr (std::is_floating_point_v<NumberT>)
    return static_cast<double>(value);
  else
    return value;
}
#endif

// A piece of a message: a text or a number. One type holds every kind of piece, so that raise() is little code at each
// of the many places that call it.
class message_piece {
 public:
  message_piece(const char* text) : text_(text) {}
  message_piece(std::string_view text) : text_(text) {}
  message_piece(const std::string& text) : text_(text) {}
#if !ESPALIER_HOSTED
  message_piece(const message_text& text) : text_(text) {}
#endif
  message_piece(bool value) : text_(value ? "true" : "false") {}
  message_piece(float value) : kind_(kind::float_number), number_(static_cast<double>(value)) {}
  message_piece(double value) : kind_(kind::double_number), number_(value) {}
  template <class NumberT>
  requires std::is_integral_v<NumberT> message_piece(NumberT value)
      : kind_(std::is_signed_v<NumberT> ? kind::integer : kind::natural), integer_(static_cast<long long>(value)) {}

  void append_to(message_type& message) const {
    switch (kind_) {
      case kind::text:
        message += text_;
        break;
      case kind::integer:
        message += in_words(integer_);
        break;
      case kind::natural:
        message += in_words(static_cast<unsigned long long>(integer_));
        break;
      case kind::float_number:
        message += in_words(static_cast<float>(number_));
        break;
      case kind::double_number:
        message += in_words(number_);
        break;
    }
  }

 private:
  enum class kind { text, integer, natural, float_number, double_number };

  kind kind_ = kind::text;
  std::string_view text_{};
  long long integer_ = 0;
  double number_ = 0;
};

inline message_type joined(std::span<const message_piece> pieces) {
  message_type message;
  for (const message_piece& piece : pieces)
    piece.append_to(message);
  return message;
}

// Calls an action, in a program without exceptions. Returns true if the action has raised no error, else writes the
// sentence of the error to `message`. An error leaves the action by a jump, which calls no destructor.
template <class ActionT>
bool attempt(const ActionT& action, message_type& message);

#if !ESPALIER_EXCEPTIONS
// The point at which attempt() goes on after an error, and the sentence of that error.
struct way_back {
  std::jmp_buf place;
  message_type message{};

  // The way back to the innermost attempt() that is under way, nullptr where there is none. Each thread has its own.
  static way_back*& current() {
#if ESPALIER_HOSTED
    thread_local way_back* innermost = nullptr;
#else
    static way_back* innermost = nullptr;
#endif
    return innermost;
  }
};

template <class ActionT>
[[gnu::noinline]] bool attempt(const ActionT& action, message_type& message) {
  way_back here;
  way_back* const volatile outer = std::exchange(way_back::current(), &here);
  volatile bool is_done = false;
  if (setjmp(here.place) == 0) {
    action();
    is_done = true;
  }
  way_back::current() = outer;
  if (!is_done) message = here.message;
  return is_done;
}
#endif

template <class ErrorT>
[[noreturn]] void raise_joined(std::span<const message_piece> pieces) {
#if ESPALIER_EXCEPTIONS
  throw ErrorT(joined(pieces));
#else
  if (way_back* const attempted = way_back::current()) {
    attempted->message = joined(pieces);
    std::longjmp(attempted->place, 1);
  }
  const message_type message = joined(pieces);
  error_handler()(message.c_str());
#if ESPALIER_HOSTED
  std::abort();
#else
  __builtin_trap();
#endif
#endif
}

}  // namespace detail

//! Raises ErrorT with a message that consists of the pieces (text and numbers) in order. If exceptions are disabled,
//! the message goes to the decoder that tells the error as a state or an event, or, if there is none, to
//! error_handler().
template <class ErrorT, class... PiecesT>
[[noreturn]] void raise(const PiecesT&... pieces) {
  const detail::message_piece all[] = {pieces...};
  detail::raise_joined<ErrorT>(all);
}

//! Checks that the value of an option lies in [low, high]; NaN never does.
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
