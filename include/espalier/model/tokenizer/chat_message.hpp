// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>

namespace espalier {

//! What one side of a chat says.
struct chat_message {
  std::string role;  //!< system, user or assistant
  std::string content;
};

}  // namespace espalier
