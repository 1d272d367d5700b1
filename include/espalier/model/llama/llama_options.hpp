// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <vector>

#include "espalier/core/option.hpp"
#include "espalier/model/files/weight_storage.hpp"
#include "espalier/model/llama/matrix_arithmetic.hpp"
#include "espalier/model/llama/thread_team.hpp"

namespace espalier {

struct llama_options {
  int threads = 0;                   //!< 0: as many as the hardware runs at once
  int max_rows = 320;                //!< longest batch of one forward pass: a tree of 256 and what is pending
  int max_positions = 0;             //!< 0: as many as the model has
  std::vector<int> hidden_layers{};  //!< layers, from 0, whose output stays readable after a forward pass
  matrix_arithmetic arithmetic = matrix_arithmetic::exact;  //!< of quantised weights
  weight_storage weights = weight_storage::as_stored;       //!< of matrices that load() reads

  static constexpr void describe(auto see) {
    see(option{"threads", &llama_options::threads, "threads; 0: one for each processor", 0, thread_team::most_threads});
    see(option{"max_rows", &llama_options::max_rows, "rows of the longest forward pass", 1, 1 << 16});
    see(option{"arithmetic", &llama_options::arithmetic, "products with quantised weights"});
    see(option{"weights", &llama_options::weights, "how matrices are held"});
  }
};

}  // namespace espalier
