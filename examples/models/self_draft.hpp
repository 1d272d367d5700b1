// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/core/option.hpp"
#include "espalier/model/llama/matrix_arithmetic.hpp"

namespace models {

//! The options of a target that drafts for itself: they make its drafting passes cheaper than its other passes.
struct self_draft_options {
  int window = 0;  //!< last tokens of the text that drafting sees, beside the first 4; 0: the whole text
  int layers = 0;  //!< first layers that a drafting pass goes through; 0: all
  espalier::matrix_arithmetic arithmetic = espalier::matrix_arithmetic::exact;

  static constexpr void describe(auto see) {
    using self = self_draft_options;
    using espalier::option;
    see(option{"window", &self::window, "last tokens that drafting sees, and the first 4; 0: the whole text", 0,
               1 << 20});
    see(option{"layers", &self::layers, "first layers that a drafting pass goes through; 0: all", 0, 1 << 12});
    see(option{"arithmetic", &self::arithmetic, "products of drafting passes; integer if the target's are integer"});
  }
};

}  // namespace models
