// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>

namespace espalier::detail {

// What stands around what a role says.
struct chat_turn {
  std::string before, after;
  bool trims = false;  // white space at both ends of what is said
};

// How messages become a prompt.
struct chat_form {
  // Where the system's message goes: a turn of its own, or into the first or the last of the user's.
  enum class system_place { own_turn, first_user, last_user, nowhere };

  std::string begin{};  // of the prompt
  chat_turn system{}, user{}, assistant{};
  std::string reply{};            // after which the assistant goes on
  std::string end_of_turn{};      // with which it ends
  std::string default_system{};   // where no message is the system's
  std::string system_preamble{};  // goes before what it says; then there is always a turn of the system
  system_place system_goes = system_place::own_turn;
  bool is_plain = false;        // it knows no special tokens: what goes before any text goes before the prompt
  bool alternates = false;      // user and assistant must take turns, the user first and last
  bool drops_thoughts = false;  // what the assistant said up to </think>
};

}  // namespace espalier::detail
