// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <string>

#include "../models/model_paths.hpp"
#include "../models/usage_error.hpp"
#include "api_request.hpp"
#include "engine_options.hpp"
#include "espalier/core/option.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/model/tokenizer/chat_template.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"
#include "http_options.hpp"

namespace serve {

//! The values that the command line gives.
struct arguments {
  models::model_paths models;
  std::string model_name;  //!< name shown to clients; empty: that of the model folder
  std::int32_t threads = 0;
  std::int32_t grace = 30;
  engine_options engine;
  http_options http;
  //! Labels before the messages of user and assistant, each on a line of its own; empty: the template in the model's
  //! files, or else labels that the bundled models know.
  std::string chat_user, chat_assistant;

  espalier::chat_template chat(const espalier::tokenizer& text) const {
    if (chat_user.empty() && chat_assistant.empty() && !text.chat_template_text().empty()) {
      try {
        return espalier::chat_template::of(text);
      } catch (const espalier::model_error& error) {
        throw models::usage_error(error.what() +
                                  std::string(" --chat-user and --chat-assistant write chats without it."));
      }
    }
    return espalier::chat_template::labelled(chat_user.empty() ? "Question:" : chat_user,
                                             chat_assistant.empty() ? "Answer:" : chat_assistant);
  }

  static constexpr void describe(auto see) {
    using self = arguments;
    using espalier::option;
    see(option{"threads", &self::threads, "threads of a forward pass; 0: one for each processor", 0,
               espalier::thread_team::most_threads});
    see(option{"grace", &self::grace, "seconds that texts may still take when the server is told to end", 0, 86400});
  }
};

//! Reads a command line. If it contains --help, only `help` is set.
//!
//! Errors      models::usage_error
arguments parse(int argc, const char* const* argv, std::string& help);

}  // namespace serve
