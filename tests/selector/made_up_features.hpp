// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "espalier/selector/selector_features.hpp"
#include "selector/made_up_tensors.hpp"

// Inputs as in tests/data/selector/make_golden.py. Not to be copied: the features point into it.
struct made_up_features {
  made_up_features(int number, std::int32_t target_hidden, std::int32_t draft_hidden) {
    const auto numbers = [&](const char* name, std::size_t n) {
      std::vector<float> values = made_up(std::to_string(number) + " " + name, n);
      for (float& x : values)
        x *= 4;
      return values;
    };
    target = numbers("target_hidden", static_cast<std::size_t>(target_hidden));
    previous = numbers("draft_hidden_prev", static_cast<std::size_t>(draft_hidden));
    root = numbers("draft_hidden_root", static_cast<std::size_t>(draft_hidden));
    const std::vector<float> scalars = numbers("scalars", selector_features::n_scalars);
    features.target_hidden = target;
    features.draft_hidden_prev = previous;
    features.draft_hidden_root = root;
    std::copy(scalars.begin(), scalars.end(), features.scalars.begin());
  }
  made_up_features(const made_up_features&) = delete;

  using selector_features = espalier::selector_features;
  std::vector<float> target, previous, root;
  selector_features features;
};
