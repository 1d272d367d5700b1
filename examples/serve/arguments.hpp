// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <string>

#include "../models/drafter_kind.hpp"
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
  models::drafter_kind drafter = models::drafter_kind::automatic;  //!< parse() leaves another one than automatic
  std::int32_t threads = 0;
  std::int32_t grace = 30;
  engine_options engine;
  http_options http;
  //! Labels before the messages of user and assistant, each on a line of its own; empty: the template in the model's
  //! files, or else labels that the bundled models know.
  std::string chat_user, chat_assistant;

  //! The template of chats. Where the one in the model's files cannot be run, stderr says so, and the template refuses
  //! every chat with that sentence.
  espalier::chat_template chat(const espalier::tokenizer& text) const;

  static constexpr void describe(auto see) {
    using self = arguments;
    using espalier::option;
    see(option{"drafter", &self::drafter, "what proposes tokens"});
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
