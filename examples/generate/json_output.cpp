// SPDX-License-Identifier: BSL-1.0
#include "json_output.hpp"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "../models/option_text.hpp"
#include "draft_sampling.hpp"
#include "parts.hpp"
#include "stations.hpp"

namespace generate {

namespace {

json to_json(const std::vector<models::text_option>& options) {
  json object = json::object();
  for (const models::text_option& option : options)
    std::visit([&](const auto& value) { object[std::string(option.name)] = value; }, option.value);
  return object;
}

template <class OptionsT>
json options_to_json(OptionsT options) {
  return to_json(models::text_options(options));
}

}  // namespace

json part_options_to_json(const arguments& arguments, const pairing& used) {
  const std::unique_ptr<method> grown = find_method(arguments.parts, used.method).copy();
  json object = options_to_json(arguments.target);
  object["seed"] = arguments.seed;
  object["device"] = std::string(espalier::name_of(arguments.device));
  object["arithmetic"] = std::string(espalier::name_of(arguments.arithmetic));
  object["weights"] = std::string(espalier::name_of(arguments.weights));
  object["commit"] = std::string(espalier::name_of(arguments.commit));
  object["max_tokens"] = arguments.max_tokens;
  object["stop"] = arguments.stop;
  object["sampling"] = options_to_json(arguments.target.text.sampling);
  if (grown->drafts) {
    object["drafter"] = std::string(espalier::name_of(arguments.drafter));
    object["ahead"] = arguments.ahead;
    if (arguments.drafter == drafter_kind::self) object["self"] = options_to_json(arguments.self);
    if (arguments.drafter != drafter_kind::text) object["draft"] = options_to_json(draft_sampling(arguments, *grown));
  }
  object[used.method] = to_json(grown->options());
  if (const std::string& name = arguments.text_method; !name.empty() && grown->drafts) {
    object["text_method"] = name;
    object[name] = to_json(find_method(arguments.parts, name).copy()->options());
  }
  const json of_verifier = to_json(arguments.parts.verifiers.find(used.verifier)->copy()->options());
  if (!of_verifier.empty()) object[used.verifier] = of_verifier;
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
          {"drafted_ahead", s.drafted_ahead},
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
