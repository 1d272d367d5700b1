// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <fstream>
#include <istream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "json_lines.hpp"

namespace models {

//! A text to continue, given as text or as tokens.
struct prompt {
  std::string text{};                        //!< empty if tokens are given
  std::vector<espalier::token_id> tokens{};  //!< empty if text is given
  std::string domain{};                      //!< empty if the file names none
  std::optional<float> temperature{};        //!< the target's temperature, if the file gives one
  int line = 0;                              //!< its line in the file, from 1
};

namespace detail {

inline prompt prompt_of(const nlohmann::json& json, const std::string& where) {
  const auto refuse = [&](std::string_view why) {
    espalier::raise<espalier::input_error>(where, " ", why,
                                           "; a line is a string, or an object with a string \"text\" or a list "
                                           "\"tokens\", \"domain\", and \"temperature\".");
  };
  prompt result;
  if (json.is_string()) {
    result.text = json.get<std::string>();
  } else if (json.is_object()) {
    const auto text_at = json.find("text");
    const auto tokens_at = json.find("tokens");
    const auto domain_at = json.find("domain");
    if ((text_at == json.end()) == (tokens_at == json.end())) refuse("must have one of \"text\" and \"tokens\"");
    if (text_at != json.end()) {
      if (!text_at->is_string()) refuse("has a \"text\" that is no string");
      result.text = text_at->get<std::string>();
    } else {
      if (!tokens_at->is_array()) refuse("has \"tokens\" that are no list");
      for (const nlohmann::json& token : *tokens_at) {
        if (!token.is_number_integer() || token < 0 || token > 0x7FFFFFFF) refuse("has a token that is no token id");
        result.tokens.push_back(token.get<espalier::token_id>());
      }
    }
    if (domain_at != json.end()) {
      if (!domain_at->is_string()) refuse("has a \"domain\" that is no string");
      result.domain = domain_at->get<std::string>();
    }
    if (const auto at = json.find("temperature"); at != json.end()) {
      if (!at->is_number() || *at < 0.0) refuse("has a \"temperature\" that is no number from 0 on");
      result.temperature = at->get<float>();
    }
  } else {
    refuse(json.is_discarded() ? "is not JSON" : "is neither a string nor an object");
  }
  if (result.text.empty() && result.tokens.empty()) refuse("is an empty prompt");
  return result;
}

}  // namespace detail

//! Reads prompts, one a line, as JSON: a string, or an object with "text" or "tokens" and optionally "domain" and
//! "temperature". Empty lines are skipped. `where` names the file in messages.
//!
//! Errors      espalier::input_error that names the file and the line; also for a file with no prompt
inline std::vector<prompt> read_prompts(std::istream& file, const std::string& where) {
  std::vector<prompt> prompts;
  read_json_lines(file, where, [&](const nlohmann::json& json, const std::string& at, int line) {
    prompts.push_back(detail::prompt_of(json, at));
    prompts.back().line = line;
  });
  if (prompts.empty()) espalier::raise<espalier::input_error>(where, " holds no prompt.");
  return prompts;
}

inline std::vector<prompt> read_prompts(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) espalier::raise<espalier::input_error>(path, " cannot be opened.");
  return read_prompts(file, path);
}

}  // namespace models
