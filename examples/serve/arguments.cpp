// SPDX-License-Identifier: BSL-1.0
#include "arguments.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "../models/flags.hpp"
#include "../models/help_format.hpp"
#include "../models/models_path.hpp"
#include "espalier/core/error.hpp"

namespace serve {

namespace {

constexpr auto key_variable = "ESPALIER_API_KEY";

void add_text(models::flags& f, const char* group, const char* flag, const char* type, const std::string& help,
              std::string& value) {
  f.add(group, flag, type, help, [&value](const std::string& text) { value = text; });
}

// The origins in a list with commas. Browsers send scheme, host and port, nothing else.
std::vector<std::string> origins_in(const std::string& text) {
  std::vector<std::string> origins;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = (std::min)(text.find(',', at), text.size());
    const std::string origin = text.substr(at, end - at);
    const std::size_t scheme = origin.find("://");
    const bool is_origin = scheme != std::string::npos && scheme > 0 && origin.size() > scheme + 3 &&
                           origin.find_first_of("/?# \t\r\n", scheme + 3) == std::string::npos;
    if (origin != "*" && !is_origin) {
      throw models::usage_error(
          "--cors must be *, or origins such as https://a.example, with commas between them, but "
          "has \"" +
          origin + "\".");
    }
    origins.push_back(origin);
    at = end + 1;
  }
  return origins;
}

// The name of the last folder of a path.
std::string name_of_folder(const std::string& path) {
  const std::filesystem::path whole = std::filesystem::absolute(path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

}  // namespace

espalier::chat_template arguments::chat(const espalier::tokenizer& text) const {
  if (!chat_user.empty() || !chat_assistant.empty() || text.chat_template_text().empty()) {
    return espalier::chat_template::labelled(chat_user.empty() ? "Question:" : chat_user,
                                             chat_assistant.empty() ? "Answer:" : chat_assistant);
  }
  try {
    return espalier::chat_template::of(text);
  } catch (const espalier::model_error& error) {
    std::cerr << "Chats are refused: " << error.what() << " --chat-user and --chat-assistant write chats without it."
              << std::endl;
    return espalier::chat_template::of("{{ raise_exception(why) }}", {{"why", error.what()}}, "this model");
  }
}

arguments parse(int argc, const char* const* argv, std::string& help) {
  arguments result;
  result.models.model = models::default_models_path();
  CLI::App app(
      "Serves a language model in the manner of OpenAI's API: POST /v1/completions and\n"
      "/v1/chat/completions, GET /v1/models, /health and /metrics. Many texts are written at\n"
      "once, each several tokens a step.");
  app.name("serve");
  app.formatter(std::make_shared<models::help_format>("serve [--model PATH] [--port N] ..."));
  app.set_help_flag();
  models::flags f(app);
  models::add_model_paths(f, "Models", result.models);
  add_text(f, "Models", "--model-name", "NAME", "what clients call the model [the name of its file or folder]",
           result.model_name);
  f.add_option("Models", "", espalier::option_of(&arguments::drafter), result.drafter);
  f.add_option("Models", "", espalier::option_of(&arguments::threads), result.threads);
  f.add_options("Texts", "", result.engine);
  f.add_options("Texts", "", result.engine.rules);
  add_text(f, "Texts", "--costs", "FILE", "what passes cost here, of nde costs, for cost-aware [measured at the start]",
           result.engine.costs);
  add_text(f, "Texts", "--memory-file", "FILE",
           "where the texts of --memory are kept from one run to the next, as they are [nowhere]",
           result.engine.memory_file);
  add_text(f, "Chat", "--chat-user", "TEXT",
           "stands before what a user says [as the tokenizer's chat template says, or \"Question:\"]",
           result.chat_user);
  add_text(f, "Chat", "--chat-assistant", "TEXT",
           "stands before what the assistant says [as the chat template says, or \"Answer:\"]", result.chat_assistant);
  add_text(f, "Clients", "--host", "ADDRESS", "to listen at" + models::bracketed(result.http.host), result.http.host);
  f.add_options("Clients", "", result.http);
  add_text(f, "Clients", "--api-key", "KEY",
           "that clients must send; better set " + std::string(key_variable) + ", which others cannot see [none]",
           result.http.api_key);
  f.add("Clients", "--cors", "ORIGINS",
        "web pages that may ask: https://a.example,http://localhost:3000, or * for all [none]",
        [&result](const std::string& text) { result.http.origins = origins_in(text); });
  f.add_option("Clients", "", espalier::option_of(&arguments::grace), result.grace);
  app.set_help_flag("-h,--help", "print this")->group("Clients");
  app.footer(
      "Example:\n"
      "  serve --port 8080 &\n"
      "  curl http://127.0.0.1:8080/v1/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"prompt\": \"The king\", \"max_tokens\": 40, \"temperature\": 0.8, \"seed\": 7}'");
  app.allow_extras();
  if (const char* key = std::getenv(key_variable)) result.http.api_key = key;
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    help = app.help();
    return result;
  } catch (const CLI::ParseError& error) {
    throw models::usage_error(models::sentence(error, argv[argc - 1]));
  }
  if (!app.remaining().empty()) throw models::no_such_argument(app);
  if (result.drafter == models::drafter_kind::automatic)
    result.drafter = models::drafter_beside(result.models.resolved());
  if (result.drafter == models::drafter_kind::self)
    throw models::usage_error("--drafter self drafts in generate alone: the server has no options --self.");
  models::require_drafter(result.drafter, result.models, "--draft");
  if (result.engine.memory > 0 && result.drafter != models::drafter_kind::text) {
    throw models::usage_error("--memory is for drafts from texts, but --drafter is " +
                              std::string(espalier::name_of(result.drafter)) + " here: --drafter text goes with it.");
  }
  if (!result.engine.memory_file.empty() && result.engine.memory == 0)
    throw models::usage_error("--memory-file keeps what --memory holds, which is missing.");
  if (result.engine.memory == 1) throw models::usage_error("--memory must be 0, or 2 tokens or more, but is 1.");
  if (result.model_name.empty()) result.model_name = name_of_folder(result.models.model);
  return result;
}

}  // namespace serve
