// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier {

//! Number of letters that must be added, left out, changed, or exchanged with the next one to make one word of another.
//!
//! Complexity  O(|a| |b|)
//! Source      Wagner and Fischer 1974, with exchanges of neighbours (optimal string alignment)
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  // The distances from the first i, i - 1 and i - 2 letters of a to the first j letters of b, for each j.
  std::vector<std::size_t> now(b.size() + 1), before(b.size() + 1), earlier(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j)
    now[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(earlier, before);
    std::swap(before, now);
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = (std::min)({before[j] + 1, now[j - 1] + 1, before[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        now[j] = (std::min)(now[j], earlier[j - 2] + 1);
    }
  }
  return now[b.size()];
}

//! Returns the name in a range of strings that is nearest to a misspelt one; the first if several are equally near; an
//! empty name if every name differs in more than a third of the letters of the longer word.
template <class NamesT>
std::string_view nearest_name(std::string_view misspelt, const NamesT& names) {
  std::string_view nearest;
  std::size_t least = misspelt.size() + 1;
  for (const std::string_view name : names) {
    const std::size_t distance = edit_distance(misspelt, name);
    if (distance >= least || 3 * distance > (std::max)(misspelt.size(), name.size())) continue;
    nearest = name;
    least = distance;
  }
  return nearest;
}

}  // namespace espalier
