// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "../models/model_costs.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/model/llama/model_identity.hpp"
#include "espalier/selector/neural_delayed.hpp"
#include "espalier/selector/selector_file.hpp"
#include "espalier/tree_policy/cost_aware/cost_aware_options.hpp"
#include "pairings.hpp"
#include "terminal.hpp"
#include "write_with.hpp"

namespace generate {

namespace detail {

// Of the first text that asks: the models are the same for all.
inline const espalier::cost_model& costs_of(const assignment& work) {
  static const espalier::cost_model costs = [&] {
    if (!work.arguments.costs.empty()) return models::read_model_costs(work.models, work.arguments.costs);
    const auto show = [](const std::string& line) {
      if (stderr_is_terminal()) std::cerr << "\r\x1b[K" << line << std::flush;
    };
    auto measured = models::measure_model_costs(
        work.models, {.most_rows = espalier::cost_aware_options{}.budget + 1, .seconds = 2},
        [&](double share, std::string_view what) { show(fmt::format("Measuring: {:.0f} %, {}", 100 * share, what)); });
    show("");
    return measured;
  }();
  return costs;
}

// The file of a verifier's selector; empty where there is none. At temperature 0 all verifiers accept alike.
inline std::string selector_path(const assignment& work) {
  namespace files = std::filesystem;
  const std::string& folder = work.arguments.selectors;
  const files::path from = folder.empty() ? files::path(work.arguments.models.model) / "selector" : files::path(folder);
  const std::string own = work.verifier == "greedy" ? "target-only" : work.verifier;
  for (const std::string& name : {own, std::string("specinfer")}) {
    const files::path path = from / (name + ".safetensors");
    if (files::is_regular_file(path)) return path.string();
  }
  if (!folder.empty()) {
    throw usage_error(
        fmt::format("--selectors {} holds neither {}.safetensors nor specinfer.safetensors.", folder, own));
  }
  return {};
}

}  // namespace detail

//! The policy of a method, with what it is made from besides its options: what passes cost, and a selector.
//!
//! Errors      what reading the files raises
template <class PartT>
typename PartT::type policy_of(const PartT& part, const assignment& work) {
  using policy_type = typename PartT::type;
  if constexpr (std::is_same_v<policy_type, espalier::neural_delayed<>>) {
    const std::string path = detail::selector_path(work);
    if (path.empty()) return part.make();
    auto file = espalier::load_selector(path);
    const models::model_paths& paths = work.models.paths;
    espalier::require_origin(file, {espalier::model_identity(paths.model), espalier::model_identity(paths.draft),
                                    work.models.target.vocab_size(), file.origin.verifier});
    return policy_type(part.options, std::move(file.selector), detail::costs_of(work));
  } else if constexpr (std::is_constructible_v<policy_type, decltype(part.options), espalier::cost_model>) {
    const espalier::cost_model& costs = detail::costs_of(work);
    return policy_type(part.options, is_sequence(work.arguments.drafter) ? costs.without_draft() : costs);
  } else {
    return part.make();
  }
}

}  // namespace generate
