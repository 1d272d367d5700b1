// SPDX-License-Identifier: BSL-1.0
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string>
#include <string_view>

#include "../models/model_costs.hpp"
#include "../models/model_set.hpp"
#include "arguments.hpp"
#include "espalier/cost/measure_costs.hpp"
#include "espalier/model/files/cost_file.hpp"
#include "espalier/model/llama/model_identity.hpp"
#include "sampling_setting.hpp"

namespace nde {

int costs(const costs_arguments& a) {
  const espalier::sampling_options sampling = parse_sampling(a.sampling);
  models::model_set models = models::model_set::load(
      a.models, {.threads = a.n_threads(), .max_rows = std::max(a.rows, 64), .arithmetic = a.arithmetic});
  models.any_draft_model();  // says so if there is none
  const espalier::measure_options how{.target = espalier::model_identity(models.paths.model),
                                      .draft = models::draft_identity(models),
                                      .most_rows = a.rows,
                                      .seconds = a.seconds};
  int shown = -1;
  const auto show = [&](double share, std::string_view) {
    const int tenth = static_cast<int>(share * 10);
    if (tenth <= shown) return;
    shown = tenth;
    fmt::print(stderr, "{} % of the passes are measured\n", tenth * 10);
  };
  const espalier::cost_model found = models::measure_model_costs(models, how, show, sampling);
  const std::string source =
      fmt::format("measured on {:%Y-%m-%d} by: nde costs --sampling {} --rows {} --seconds {:g} --threads {}",
                  fmt::gmtime(std::time(nullptr)), a.sampling, a.rows, a.seconds, a.n_threads());
  espalier::save_costs(found, a.out, source);
  const std::int32_t context = models.drafted_context() / 4;
  fmt::print("{}\n  target  {}\n  draft   {}\n\nmilliseconds after {} tokens\n  {:>6}{:>10}{:>10}\n", found.hardware,
             found.target, found.draft, context, "rows", "draft", "target");
  for (std::int32_t rows = 1; rows <= a.rows; rows *= 2) {
    fmt::print("  {:>6}{:>10.3f}{:>10.3f}\n", rows, 1e3 * found.draft_pass(rows, context),
               1e3 * found.target_pass(rows, context));
  }
  fmt::print("A round that drafts takes {:.3f} more than its passes.\n", 1e3 * found.opening);
  return 0;
}

}  // namespace nde
