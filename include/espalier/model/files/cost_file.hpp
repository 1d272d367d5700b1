// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/cost/cost_curve.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/cost/monotone_grid.hpp"
#include "espalier/model/files/json_reader.hpp"
#include "espalier/model/files/whole_file.hpp"

namespace espalier {

namespace detail {

inline constexpr const char* cost_format = "espalier-costs 1";

// Returns the numbers as a JSON list on one line, each with the fewest digits that still identify it.
template <class NumberT>
std::string in_json(std::span<const NumberT> numbers) {
  std::string text = "[";
  for (std::size_t i = 0; i < numbers.size(); ++i)
    text += (i > 0 ? ", " : "") + nlohmann::json(numbers[i]).dump();
  return text + "]";
}

inline std::string in_json(const cost_curve& curve) {
  const std::size_t n = curve.contexts().size();
  std::string text = "{\n    \"rows\": " + in_json(curve.rows()) + ",\n    \"contexts\": " + in_json(curve.contexts()) +
                     ",\n    \"seconds\": [";
  for (std::size_t r = 0; r < curve.rows().size(); ++r)
    text += (r > 0 ? ",\n      " : "\n      ") + in_json(curve.seconds().subspan(r * n, n));
  return text + "\n    ]\n  }";
}

// Returns the numbers of `list`: whole numbers from 0 to 2^24 if NumberT is an integer type, else any numbers. `key`
// names the list in messages.
template <class NumberT>
std::vector<NumberT> read_numbers(const json_reader& json, const char* key, const nlohmann::json& list) {
  std::vector<NumberT> numbers;
  const bool is_list = list.is_array();
  for (std::size_t i = 0; is_list && i < list.size(); ++i) {
    if constexpr (std::is_integral_v<NumberT>) {
      if (!list[i].is_number_integer() || list[i] < 0 || list[i] > (1 << 24)) {
        json.refuse(key, list[i], "a list of whole numbers from 0 to ", 1 << 24);
      }
    } else if (!list[i].is_number()) {
      json.refuse(key, list[i], "a list of numbers");
    }
    numbers.push_back(list[i].get<NumberT>());
  }
  if (!is_list) json.refuse(key, list, "a list of numbers");
  return numbers;
}

inline cost_curve read_curve(const json_reader& file, const char* name) {
  const nlohmann::json* object = file.find(name);
  if (!object) raise<model_error>(file.where(), " lacks \"", name, "\".");
  if (!object->is_object()) file.refuse(name, *object, "an object");
  const json_reader json(*object, file.where() + ": \"" + name + "\"");
  const auto need = [&](const char* key) -> const nlohmann::json& {
    const nlohmann::json* value = json.find(key);
    if (!value) raise<model_error>(json.where(), " lacks \"", key, "\".");
    return *value;
  };
  auto rows = read_numbers<std::int32_t>(json, "rows", need("rows"));
  auto contexts = read_numbers<std::int32_t>(json, "contexts", need("contexts"));
  const nlohmann::json& lists = need("seconds");
  if (!lists.is_array() || lists.size() != rows.size()) {
    raise<model_error>(json.where(), ": \"seconds\" must be ", rows.size(),
                       " lists of numbers, one for each of \"rows\".");
  }
  std::vector<double> seconds;
  for (const nlohmann::json& list : lists) {
    const std::vector<double> of_rows = read_numbers<double>(json, "seconds", list);
    if (of_rows.size() != contexts.size()) {
      raise<model_error>(json.where(), ": a list of \"seconds\" has ", of_rows.size(), " numbers, but must have ",
                         contexts.size(), ", one for each of \"contexts\".");
    }
    seconds.insert(seconds.end(), of_rows.begin(), of_rows.end());
  }
  const std::string fault = fault_of_grid(rows, contexts, seconds);
  if (!fault.empty()) raise<model_error>(json.where(), ": ", fault);
  return cost_curve::of_grid(std::move(rows), std::move(contexts), std::move(seconds));
}

inline std::string read_name(const json_reader& file, const char* key) {
  const nlohmann::json* value = file.find(key);
  if (!value) raise<model_error>(file.where(), " lacks \"", key, "\".");
  return file.text_or(key, "");
}

}  // namespace detail

//! Writes a cost model as JSON for people and for load_costs. `source` is a sentence that says how the seconds were
//! measured or chosen; load_source_of_costs() returns it.
//!
//! Errors      input_error for a path that cannot be written
inline void save_costs(const cost_model& costs, const std::string& path, const std::string& source = {}) {
  const auto quoted = [](const std::string& text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  std::ofstream file(path, std::ios::binary);
  file << "{\n  \"format\": " << quoted(detail::cost_format);
  if (!source.empty()) file << ",\n  \"source\": " << quoted(source);
  file << ",\n  \"hardware\": " << quoted(costs.hardware) << ",\n  \"target\": " << quoted(costs.target)
       << ",\n  \"draft\": " << quoted(costs.draft)
       << ",\n  \"opening_seconds\": " << nlohmann::json(costs.opening).dump()
       << ",\n  \"draft_pass\": " << detail::in_json(costs.draft_pass)
       << ",\n  \"target_pass\": " << detail::in_json(costs.target_pass) << "\n}\n";
  if (!file.flush()) raise<input_error>("the costs could not be written to ", path, ".");
}

//! Reads the text of a cost file; `where` names the file in messages.
//!
//! Errors      model_error that names the file and a part that is missing or invalid
inline cost_model parse_costs(std::string_view text, const std::string& where) {
  const nlohmann::json object = detail::parse_json_object(text, where);
  const detail::json_reader json(object, where);
  if (detail::read_name(json, "format") != detail::cost_format) {
    json.refuse("format", *json.find("format"), "\"", detail::cost_format, "\"");
  }
  if (!json.has("opening_seconds")) raise<model_error>(where, " lacks \"opening_seconds\".");
  return {.hardware = detail::read_name(json, "hardware"),
          .target = detail::read_name(json, "target"),
          .draft = detail::read_name(json, "draft"),
          .draft_pass = detail::read_curve(json, "draft_pass"),
          .target_pass = detail::read_curve(json, "target_pass"),
          .opening = json.number_or("opening_seconds", 0, 0, 1e6)};
}

//! Returns the cost model in a file that save_costs wrote. It may be of any hardware and any models: see mismatch.
//!
//! Law         returns the saved cost model, number for number
//! Errors      those of parse_costs; model_error for a file that cannot be opened
inline cost_model load_costs(const std::string& path) {
  return parse_costs(detail::whole_file(path), path);
}

//! Returns the sentence in a cost file that says how its seconds were measured or chosen; empty if it has none.
//!
//! Errors      model_error for a file that cannot be opened, is no JSON object, or whose "source" is no text
inline std::string load_source_of_costs(const std::string& path) {
  const nlohmann::json object = detail::parse_json_object(detail::whole_file(path), path);
  return detail::json_reader(object, path).text_or("source", "");
}

//! A sentence that says that costs were measured on other hardware than `hardware`; empty if they were not. With such
//! costs the text is still right, but the trees chosen by them may be slower than necessary.
//!
//! Errors      input_error if the costs were measured with other models than `target` and `draft`
inline std::string mismatch(const cost_model& costs, const std::string& hardware, const std::string& target,
                            const std::string& draft) {
  const auto require_model = [](const char* which, const std::string& measured, const std::string& present) {
    if (measured != present) {
      raise<input_error>("the costs were measured with the ", which, " model ", measured, ", but this one is ", present,
                         ": measure them again.");
    }
  };
  require_model("target", costs.target, target);
  require_model("draft", costs.draft, draft);
  if (costs.hardware == hardware) return {};
  return "the costs were measured on other hardware (" + costs.hardware + ") than this (" + hardware +
         "): measure them again for the best choice of trees.";
}

}  // namespace espalier
