// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/llama_backend.cpp
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "espalier/model/llama/rope_scaling.hpp"

namespace espalier::detail {

// Cosines and sines of the rotary embedding for every position.
class rotary_table {
 public:
  rotary_table(int positions, int dims, double theta, const rope_scaling& scaling = {}) : half_(dims / 2) {
    std::vector<double> frequencies;
    for (int i = 0; i < half_; ++i)
      frequencies.push_back(scaling.frequency(theta, dims, i, positions));
    const auto n = static_cast<std::size_t>(positions) * frequencies.size();
    cosine_.reserve(n);
    sine_.reserve(n);
    for (int position = 0; position < positions; ++position) {
      for (const double frequency : frequencies) {
        const double angle = position * frequency;
        cosine_.push_back(static_cast<float>(scaling.amplitude * std::cos(angle)));
        sine_.push_back(static_cast<float>(scaling.amplitude * std::sin(angle)));
      }
    }
  }

  // The cosines and the sines of a position, multiplied by the scaling's amplitude, [dims / 2].
  const float* cosine(int position) const { return cosine_.data() + static_cast<std::ptrdiff_t>(position) * half_; }
  const float* sine(int position) const { return sine_.data() + static_cast<std::ptrdiff_t>(position) * half_; }

 private:
  int half_;
  std::vector<float> cosine_, sine_;
};

}  // namespace espalier::detail
