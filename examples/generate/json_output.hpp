// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "arguments.hpp"
#include "espalier/decoder/statistics.hpp"

namespace generate {

using json = nlohmann::ordered_json;

//! The options that influence the text of a method, as JSON.
json method_options_to_json(const arguments& arguments, const std::string& method);

json statistics_to_json(const espalier::statistics& s);

//! JSON as text, indented by two spaces; bytes that are no UTF-8 become U+FFFD.
std::string to_text(const json& object);

}  // namespace generate
