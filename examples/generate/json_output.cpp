// SPDX-License-Identifier: BSL-1.0
#include "json_output.hpp"

#include <fmt/format.h>

#include <string>
#include <type_traits>

#include "draft_sampling.hpp"
#include "espalier/registry.hpp"
#include "pairings.hpp"
#include "stations.hpp"
#include "text_task.hpp"

namespace generate {

namespace {

// The described fields of an options struct as JSON.
template <class OptionsT>
json options_to_json(const OptionsT& options) {
  json object = json::object();
  espalier::for_each_option(options, [&]<class ValueT>(const auto& option, const ValueT& value) {
    json& field = object[std::string(option.name)];
    if constexpr (std::is_enum_v<ValueT>) {
      field = std::string(espalier::name_of(value));
    } else if constexpr (std::is_same_v<ValueT, float>) {
      field = std::stod(fmt::format("{}", value));  // gives 0.8 and not 0.800000012
    } else {
      field = value;
    }
  });
  return object;
}

}  // namespace

json method_options_to_json(const arguments& arguments, const std::string& method) {
  json object = options_to_json(arguments.target);
  object["seed"] = arguments.seed;
  object["device"] = std::string(espalier::name_of(arguments.device));
  object["commit"] = std::string(espalier::name_of(arguments.commit));
  object["max_tokens"] = arguments.max_tokens;
  object["stop"] = arguments.stop;
  object["sampling"] = options_to_json(arguments.target.text.sampling);
  if (find_method(method).drafts) {
    object["drafter"] = std::string(espalier::name_of(arguments.drafter));
    if (!is_sequence(arguments.drafter)) object["draft"] = options_to_json(draft_sampling(arguments, method));
  }
  with_policy(arguments, method, [&](const auto& part) { object[method] = options_to_json(part.options); });
  return object;
}

json statistics_to_json(const espalier::statistics& s) {
  json seconds = json::object();
  for (const station& station : stations)
    seconds[std::string(station.name)] = s.seconds.*(station.seconds);
  json limited_by = json::object();
  for (std::size_t i = 0; i < s.limited_by.size(); ++i) {
    if (s.limited_by[i] > 0) limited_by[espalier::to_string(static_cast<espalier::tree_limit>(i))] = s.limited_by[i];
  }
  return {{"tokens", s.tokens},
          {"rounds", s.rounds},
          {"drafted", s.drafted},
          {"accepted", s.accepted},
          {"tokens_per_second", s.throughput()},
          {"tokens_per_round", s.tokens_per_round()},
          {"acceptance_rate", s.acceptance_rate()},
          {"drafted_per_round", s.drafted_per_round()},
          {"depth", s.depth()},
          {"time_to_first_token", s.time_to_first_token()},
          {"time_per_token", s.time_per_token()},
          {"limited_by", limited_by},
          {"seconds", seconds}};
}

std::string to_text(const json& object) {
  return object.dump(2, ' ', false, json::error_handler_t::replace);
}

}  // namespace generate
