// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/core/option.hpp"
#include "espalier/model/parallel/rank_part.hpp"

namespace espalier::cuda {

//! Of parallel_backend on the device.
struct parallel_options {
  int max_rows = 257;     //!< longest batch of one forward pass: a tree of 256 and its root
  int max_positions = 0;  //!< 0: as many as the model has
  int max_context = 0;    //!< slots of a sequence of the cache; 0: max_positions and a tree of 1024
  rank_split split = rank_split::outputs;
  rank_logits logits = rank_logits::rows;
  bool batch_invariant = false;  //!< a row's bits do not depend on the batch: see parallel_backend's law

  static constexpr void describe(auto see) {
    see(option{"max_rows", &parallel_options::max_rows, "rows of the longest forward pass", 1, 1 << 16});
    see(option{"max_context", &parallel_options::max_context, "slots of a sequence of the cache", 0, 1 << 26});
    see(option{"split", &parallel_options::split, "how matrices are divided"});
    see(option{"logits", &parallel_options::logits, "what each rank is given of the logits"});
  }
};

}  // namespace espalier::cuda
