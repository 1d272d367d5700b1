// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>

namespace espalier {

//! One message of a chat.
struct chat_message {
  std::string role;  //!< system, user or assistant
  std::string content;
};

}  // namespace espalier
