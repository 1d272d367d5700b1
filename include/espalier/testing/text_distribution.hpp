// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <cstddef>
#include <map>
#include <vector>

#include "espalier/testing/tiny_model.hpp"

namespace espalier::testing {

//! Texts with their probabilities.
using text_distribution = std::map<std::vector<token_id>, double>;

//! Adds to `sum` the probabilities of the texts of n tokens that begin with `text` and continue by row(text so far).
//! `probability` is that of `text`.
inline void continue_with(const tiny_model::row_function& row, std::vector<token_id> text, double probability,
                          std::size_t n, text_distribution& sum) {
  if (text.size() >= n) {
    text.resize(n);
    sum[text] += probability;
    return;
  }
  const std::vector<double> next = row(text);
  for (std::size_t t = 0; t < next.size(); ++t) {
    if (next[t] == 0) continue;
    text.push_back(static_cast<token_id>(t));
    continue_with(row, text, probability * next[t], n, sum);
    text.pop_back();
  }
}

//! The text on which two distributions differ the most.
struct text_difference {
  std::vector<token_id> text;
  double first = 0, second = 0;  //!< its probability in each of the two

  //! The difference of the probabilities; 1 if it is NaN.
  double size() const {
    const double d = std::abs(first - second);
    return std::isnan(d) ? 1.0 : d;
  }
};

inline text_difference largest_difference(const text_distribution& a, const text_distribution& b) {
  text_difference largest;
  const auto probability = [](const text_distribution& in, const std::vector<token_id>& text) {
    const auto found = in.find(text);
    return found == in.end() ? 0.0 : found->second;
  };
  const auto look_at = [&](const std::vector<token_id>& text) {
    const text_difference here{text, probability(a, text), probability(b, text)};
    if (here.size() > largest.size()) largest = here;
  };
  for (const auto& entry : a)
    look_at(entry.first);
  for (const auto& entry : b)
    look_at(entry.first);
  return largest;
}

}  // namespace espalier::testing
