// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "espalier/core/error.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/model/files/cost_file.hpp"

namespace models {

//! The seconds that passes cost on some machine, from a file. Texts that are counted at these prices are written by the
//! models at hand, and only their seconds are the table's.
struct price_table {
  std::string file;
  espalier::cost_model costs;
  std::string source;  //!< how the seconds came about: measured or reckoned, when, and from what

  //! Reads a cost file that says for which machine and models its seconds are, and how they came about.
  //!
  //! Errors      those of load_costs; model_error for a file that does not say so, or by which the target's passes take
  //!             no time
  static price_table load(const std::string& path) {
    espalier::cost_model costs = espalier::load_costs(path);
    const auto require = [&](const char* key, const std::string& value, const char* what) {
      if (value.empty()) {
        espalier::raise<espalier::model_error>(path, " is no table of prices: \"", key, "\" must say ", what,
                                               ", but is missing or empty.");
      }
    };
    std::string source = espalier::load_source_of_costs(path);
    require("source", source, "how its seconds came about, measured or reckoned, when and from what");
    require("hardware", costs.hardware, "for which machine they are");
    require("target", costs.target, "for which target they are");
    if (!(costs.target_pass(1, 0) > 0)) {
      espalier::raise<espalier::model_error>(
          path, ": a pass of the target over one row costs 0 seconds, but must take time.");
    }
    return {path, std::move(costs), std::move(source)};
  }

  //! True if the table has prices of a draft's passes.
  bool has_draft() const { return !costs.draft.empty(); }

  //! A sentence that says whose seconds are counted.
  std::string in_words() const {
    return "Seconds are not this machine's: passes are counted at the prices of " + file + ", for " + costs.target +
           (has_draft() ? " with " + costs.draft + " as the draft, whatever drafts,"
                        : std::string(" without a draft")) +
           " on " + costs.hardware + " (" + source + ").";
  }

  nlohmann::ordered_json json() const {
    return {{"file", file},
            {"hardware", costs.hardware},
            {"target", costs.target},
            {"draft", costs.draft},
            {"source", source}};
  }
};

}  // namespace models
