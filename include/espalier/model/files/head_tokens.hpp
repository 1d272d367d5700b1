// SPDX-License-Identifier: BSL-1.0
// Tested by tests/generate/gguf.cpp
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/model/files/json_reader.hpp"
#include "espalier/model/files/whole_file.hpp"

namespace espalier {

//! Returns the tokens that a file lists for llama_options::head_tokens, ascending. The file is an object of JSON,
//! {"head_tokens": [0, 1, 17]}, with tokens below `vocab` in any order.
//!
//! Errors      model_error that names the file and what is wrong with it
inline std::vector<token_id> read_head_tokens(const std::string& path, int vocab) {
  const nlohmann::json object = detail::parse_json_object(detail::whole_file(path), path);
  const nlohmann::json* const list = detail::json_reader(object, path).find("head_tokens");
  if (object.size() != 1 || list == nullptr || !list->is_array() || list->empty())
    raise<model_error>(path, " must be an object with one key, \"head_tokens\", and a list of tokens.");
  std::vector<token_id> tokens;
  for (const nlohmann::json& one : *list) {
    if (!one.is_number_integer() || one < 0 || one >= vocab) {
      raise<model_error>(path, ": \"head_tokens\" has ", one.dump().substr(0, 60), ", but tokens are from 0 to ",
                         vocab - 1, ".");
    }
    tokens.push_back(one.get<token_id>());
  }
  std::sort(tokens.begin(), tokens.end());
  const auto twice = std::adjacent_find(tokens.begin(), tokens.end());
  if (twice != tokens.end()) raise<model_error>(path, ": \"head_tokens\" has token ", *twice, " twice.");
  return tokens;
}

}  // namespace espalier
