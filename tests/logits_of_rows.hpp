// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/testing/tiny_model.hpp"

// The model of a text_backend whose logits are the logarithms of a row of probabilities: minus infinity where they are
// 0. The row is that of the path behind the first `prompt` tokens of the text; behind fewer it is the row of no path.
struct logits_of_rows {
  espalier::testing::tiny_model::row_function row;
  std::size_t prompt = 0;

  void operator()(std::span<const espalier::token_id> text, std::span<double> logits) const {
    const std::vector<double> p = row(text.subspan(std::min(prompt, text.size())));
    for (std::size_t t = 0; t < p.size(); ++t)
      logits[t] = std::log(p[t]);
  }
};
