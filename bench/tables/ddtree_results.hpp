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

//! How much is measured.
struct ddtree_run {
  int tokens = 128;       //!< written after each prompt
  int tune = 2;           //!< prompts of a domain that settings are chosen by
  int measure = 6;        //!< prompts of a domain that the tables are of
  int curve = 1;          //!< of these, the first are written with every budget
  int curve_tokens = 48;  //!< of each such text, and of those to choose by
  int repeats = 1;
  int largest = 1024;  //!< budget
};

inline constexpr std::array<float, 2> ddtree_temperatures = {0.0F, 1.0F};

//! How many rounds committed 1, 2, ... tokens.
using round_counts = std::vector<double>;

//! All that was measured.
struct ddtree_results {
  std::vector<std::string> domains;
  std::vector<std::size_t> n_prompts;  //!< [domains]
  //! [temperatures][rows] the length or budget that was fastest
  std::vector<std::vector<int>> settings;
  std::vector<timed_texts> texts;  //!< [temperatures], methods by row
  //! [temperatures]: plain, chain over the whole block, best chain, then every budget
  std::vector<timed_texts> curves;
  std::vector<int> budgets;
  //! [temperatures][rows]
  std::vector<std::vector<round_counts>> counts;
};

}  // namespace bench
