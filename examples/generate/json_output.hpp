// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "arguments.hpp"
#include "espalier/decoder/statistics.hpp"
#include "pairings.hpp"

namespace generate {

using json = nlohmann::ordered_json;

//! The options that influence a text that these parts write, as JSON.
json part_options_to_json(const arguments& arguments, const pairing& used);

json statistics_to_json(const espalier::statistics& s);

//! JSON as text, indented by two spaces; bytes that are no UTF-8 become U+FFFD.
std::string to_text(const json& object);

}  // namespace generate
