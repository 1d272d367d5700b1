// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>

namespace espalier::detail {

// The texts before and after a message of one role.
struct chat_turn {
  std::string before, after;
  bool trims = false;  // removes white space at both ends of the message
};

// The form in which messages become a prompt.
struct chat_form {
  // The place of the system's message: a turn of its own, or in the first or the last of the user's.
  enum class system_place { own_turn, first_user, last_user, nowhere };

  std::string begin{};  // text at the beginning of the prompt
  chat_turn system{}, user{}, assistant{};
  std::string reply{};            // text after which the assistant answers
  std::string end_of_turn{};      // text that ends the answer
  std::string default_system{};   // the system's message if none is given
  std::string system_preamble{};  // text before the system's message; with it there is always a turn of the system
  system_place system_goes = system_place::own_turn;
  bool is_plain = false;        // it has no special tokens: begin_of_text goes before the prompt, as before any text
  bool alternates = false;      // user and assistant must take turns, the user first and last
  bool drops_thoughts = false;  // removes the part of the assistant's messages up to </think>
};

}  // namespace espalier::detail
