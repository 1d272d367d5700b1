// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "ddtree_methods.hpp"
#include "interval.hpp"
#include "timed_texts.hpp"

namespace bench {

//! The amount of measuring.
struct ddtree_run {
  int tokens = 128;       //!< tokens written after each prompt
  int tune = 2;           //!< prompts of a domain by which settings are chosen
  int measure = 6;        //!< prompts of a domain in the tables
  int curve = 1;          //!< how many of these, from the first on, are written with every budget
  int curve_tokens = 48;  //!< tokens of each such text, and of the texts by which settings are chosen
  int repeats = 1;
  int largest = 1024;  //!< largest budget
};

inline constexpr std::array<float, 2> ddtree_temperatures = {0.0F, 1.0F};

//! Numbers of rounds that committed 1, 2, ... tokens.
using round_counts = std::vector<double>;

//! Everything that was measured.
struct ddtree_results {
  std::vector<std::string> domains;
  std::vector<std::size_t> n_prompts;  //!< [domains]
  //! [temperatures][rows] the fastest length or budget
  std::vector<std::vector<int>> settings;
  std::vector<timed_texts> texts;  //!< [temperatures], methods by row
  //! [temperatures] plain decoding, a chain over the whole block, the best chain, then every budget
  std::vector<timed_texts> curves;
  std::vector<int> budgets;
  //! [temperatures][rows]
  std::vector<std::vector<round_counts>> counts;
};

}  // namespace bench
