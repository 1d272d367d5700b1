// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/core/option.hpp"
#include "espalier/model/files/weight_storage.hpp"
#include "espalier/model/llama/matrix_arithmetic.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/model/parallel/rank_logits.hpp"
#include "espalier/model/parallel/rank_split.hpp"

namespace espalier {

struct parallel_options {
  int threads = 1;        //!< of each rank
  int max_rows = 320;     //!< longest batch of one forward pass
  int max_positions = 0;  //!< 0: as many as the model has
  rank_split split = rank_split::outputs;
  rank_logits logits = rank_logits::rows;
  matrix_arithmetic arithmetic = matrix_arithmetic::exact;
  weight_storage weights = weight_storage::as_stored;

  static constexpr void describe(auto see) {
    see(option{"threads", &parallel_options::threads, "threads of each rank", 1, thread_team::most_threads});
    see(option{"max_rows", &parallel_options::max_rows, "rows of the longest forward pass", 1, 1 << 16});
    see(option{"split", &parallel_options::split, "how matrices are divided"});
    see(option{"logits", &parallel_options::logits, "what each rank is given of the logits"});
    see(option{"arithmetic", &parallel_options::arithmetic, "products with quantised weights"});
    see(option{"weights", &parallel_options::weights, "how matrices are held"});
  }
};

}  // namespace espalier
