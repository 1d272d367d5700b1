// SPDX-License-Identifier: BSL-1.0
#include "costs_of.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>

#include "../models/model_costs.hpp"
#include "../models/model_set.hpp"
#include "../models/price_table.hpp"
#include "espalier/model/llama/model_identity.hpp"
#include "espalier/selector/files/selector_file.hpp"
#include "espalier/tree_policy/cost_aware/cost_aware_options.hpp"
#include "terminal.hpp"

namespace generate {

namespace {

// The file of a verifier's selector in a folder; empty if there is none. At temperature 0 all verifiers accept alike.
std::string selector_in(const std::filesystem::path& folder, const std::string& verifier) {
  const std::string own = verifier == "greedy" ? "target-only" : verifier;
  for (const std::string& name : {own, std::string("specinfer")}) {
    const std::filesystem::path path = folder / (name + ".safetensors");
    if (std::filesystem::is_regular_file(path)) return path.string();
  }
  return {};
}

}  // namespace

const espalier::cost_model& costs_of(const assignment& work) {
  if (work.arguments.price) return work.arguments.price->costs;
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

std::optional<espalier::delayed_selector> selector_of(const assignment& work) {
  // No selector is trained for a target that drafts for itself.
  if (work.models.self && work.arguments.selectors.empty()) return {};
  const models::model_paths& paths = work.models.paths;
  const std::string &folder = work.arguments.selectors, &drafts = work.arguments.models.draft;
  const auto named = std::filesystem::path(folder.empty() ? work.arguments.models.model + "/selector" : folder);
  std::string path = selector_in(named, work.verifier);
  if (path.empty() && !folder.empty()) {
    throw usage_error(fmt::format("--selectors {} holds neither {}.safetensors nor specinfer.safetensors.", folder,
                                  work.verifier == "greedy" ? "target-only" : work.verifier));
  }
  const bool is_beside_draft = path.empty() && !drafts.empty();
  if (is_beside_draft) {
    // The path without a slash at its end.
    const std::filesystem::path draft = (std::filesystem::absolute(drafts) / "").lexically_normal().parent_path();
    path = selector_in(draft.parent_path() / "selector", work.verifier);
  }
  if (path.empty()) return {};
  auto file = espalier::load_selector(path);
  // Computed once, since the models are the same for all texts.
  static const std::string target = espalier::model_identity(paths.model), draft = models::draft_identity(work.models);
  const espalier::selector_origin origin{target, draft, work.models.target.vocab_size(), file.origin.verifier};
  if (is_beside_draft && !(file.origin == origin)) return {};
  espalier::require_origin(file, origin);
  return std::move(file.selector);
}

}  // namespace generate
