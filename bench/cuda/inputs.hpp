// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"

namespace bench {

//! Rows of logits like those of a language model: normally distributed with deviation 2.5, and in each row 30 tokens
//! that stand out.
inline std::vector<float> bell_logits(std::size_t n_rows, std::size_t vocab, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 2.5F);
  std::uniform_real_distribution<float> high(10, 20);
  // A little more than one row of random numbers; each row takes them from another beginning.
  std::vector<float> numbers(vocab + 4099);
  for (float& x : numbers)
    x = normal(random);
  std::vector<float> rows(n_rows * vocab);
  for (std::size_t r = 0; r < n_rows; ++r) {
    const std::size_t shift = random() % numbers.size();
    for (std::size_t t = 0; t < vocab; ++t)
      rows[r * vocab + t] = numbers[(t + shift) % numbers.size()];
    for (int i = 0; i < 30; ++i)
      rows[r * vocab + random() % vocab] = high(random);
  }
  return rows;
}

//! Rows of logits in which the token of rank i has a probability of about i to the power of -1.5. Ranks are given to
//! tokens at random.
inline std::vector<float> power_law_logits(std::size_t n_rows, std::size_t vocab, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.5F);
  std::vector<float> rows(n_rows * vocab), by_rank(vocab);
  for (std::size_t r = 0; r < n_rows; ++r) {
    for (std::size_t t = 0; t < vocab; ++t)
      by_rank[t] = -1.5F * std::log(static_cast<float>(t + 1)) + normal(random);
    std::shuffle(by_rank.begin(), by_rank.end(), random);
    std::copy(by_rank.begin(), by_rank.end(), rows.begin() + static_cast<std::ptrdiff_t>(r * vocab));
  }
  return rows;
}

//! The most probable tokens of such rows.
//!
//! Shapes      tokens, log_probs: [n_rows][n_ranks], falling
struct token_lists {
  std::vector<espalier::token_id> tokens;
  std::vector<float> log_probs;

  token_lists(std::size_t n_rows, std::size_t n_ranks, std::size_t vocab, std::uint32_t seed) {
    const std::vector<float> rows = power_law_logits(n_rows, vocab, seed);
    std::vector<espalier::token_id> order(vocab);
    for (std::size_t r = 0; r < n_rows; ++r) {
      const float* row = rows.data() + r * vocab;
      double total = 0;
      for (std::size_t t = 0; t < vocab; ++t) {
        order[t] = static_cast<espalier::token_id>(t);
        total += std::exp(static_cast<double>(row[t]));
      }
      std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n_ranks), order.end(),
                        [row](auto a, auto b) { return row[a] != row[b] ? row[a] > row[b] : a < b; });
      for (std::size_t i = 0; i < n_ranks; ++i) {
        tokens.push_back(order[i]);
        log_probs.push_back(static_cast<float>(static_cast<double>(row[order[i]]) - std::log(total)));
      }
    }
  }
};

//! Writes numbers as raw bytes, for a program in another language.
//!
//! Errors      input_error for a file that cannot be written
inline void write_floats(const std::string& path, const std::vector<float>& numbers) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(numbers.data()),
             static_cast<std::streamsize>(numbers.size() * sizeof(float)));
  if (!file.flush()) espalier::raise<espalier::input_error>(path, " cannot be written.");
}

}  // namespace bench
