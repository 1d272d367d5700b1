// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <vector>

#include "espalier/core/forward_batch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/tree_order.hpp"
#include "model_folder.hpp"
#include "static_tree.hpp"

namespace bench {

//! What forward passes cost on this machine by their rows, after a text of usual length, in turns of a draft and a target
//! pass, as a round has them: the lower quartile, which what else the machine does disturbs little.
class pass_costs {
 public:
  static constexpr int most_rows = 1 + most_trunk + most_paths * most_length;

  explicit pass_costs(models::model_folder& models, int context = 160, int turns = 61) {
    espalier::contiguous_kv target_kv = models.make_cache(models.target), draft_kv = models.make_cache(models.draft);
    fill(models.target, target_kv, context);
    fill(models.draft, draft_kv, context);
    std::array<std::vector<double>, most_paths + 1> draft;
    std::array<std::vector<double>, rows_measured.size()> target;
    for (int turn = 0; turn < turns; ++turn) {
      for (std::size_t i = 0; i < rows_measured.size(); ++i) {
        for (int rows = 1; rows <= most_paths; ++rows)
          draft[static_cast<std::size_t>(rows)].push_back(pass(models.draft, draft_kv, rows));
        target[i].push_back(pass(models.target, target_kv, rows_measured[i]));
      }
    }
    for (std::size_t rows = 1; rows < draft.size(); ++rows)
      draft_.push_back(lower_quartile(draft[rows]));
    for (auto& samples : target)
      target_.push_back(lower_quartile(samples));
  }

  //! Seconds of a draft pass of 1 to 4 rows.
  double draft(int rows) const { return draft_[static_cast<std::size_t>(rows - 1)]; }

  //! Seconds of a target pass; between the numbers of rows that were measured, a straight line.
  double target(int rows) const {
    std::size_t i = 1;
    while (i + 1 < rows_measured.size() && rows_measured[i] < rows)
      ++i;
    const double share =
        static_cast<double>(rows - rows_measured[i - 1]) / static_cast<double>(rows_measured[i] - rows_measured[i - 1]);
    return target_[i - 1] + share * (target_[i] - target_[i - 1]);
  }

  //! Of a round: a draft pass for each entry, and a target pass over the nodes, root included.
  double round(const std::vector<int>& draft_passes, int nodes) const {
    double seconds = target(nodes);
    for (const int rows : draft_passes)
      seconds += draft(rows);
    return seconds;
  }

  static constexpr std::array<int, 10> rows_measured = {1, 2, 4, 6, 8, 12, 16, 24, 32, most_rows};

 private:
  static double lower_quartile(std::vector<double>& samples) {
    const auto place = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 4);
    std::nth_element(samples.begin(), place, samples.end());
    return *place;
  }

  static void fill(espalier::llama_backend& model, espalier::contiguous_kv& kv, int context) {
    espalier::prefill prefill;
    prefill.reserve();
    prefill.run(model, kv, 0, std::vector<espalier::token_id>(static_cast<std::size_t>(context), 1), 1);
  }

  // Scratch rows that are siblings: how they see one another does not change what they cost.
  static double pass(espalier::llama_backend& model, espalier::contiguous_kv& kv, int rows) {
    const int prefix = kv.size(0);
    kv.append(0, rows);
    espalier::forward_batch batch;
    batch.begin_sequence(0, prefix, rows);
    for (int i = 0; i < rows; ++i)
      batch.add_row(10 + i, prefix, i, true);
    const auto start = std::chrono::steady_clock::now();
    model.forward(kv, batch.view());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    kv.truncate(0, prefix);
    return seconds.count();
  }

  std::vector<double> draft_;   // [most_paths]
  std::vector<double> target_;  // by rows_measured
};

}  // namespace bench
