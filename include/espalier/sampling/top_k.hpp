// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "espalier/core/token.hpp"

namespace espalier {

//! A token of a row with its probability.
template <class NumberT>
struct candidate {
  token_id token;
  NumberT probability;
};

//! Writes the k most probable tokens of a row, most probable first, ties by lower id; tokens of probability 0 are left
//! out. Returns the number of tokens written, at most k. It suits a small k: from about 16 on, top_tokens is quicker.
//!
//! Shapes      row [vocab]; out [k]
//! Complexity  one pass; an insertion of O(k) for each token that is among the first k when it is read: about k
//!             ln(vocab / k) tokens if the row is in random order
template <class NumberT>
std::int32_t top_k(std::span<const NumberT> row, std::span<candidate<std::type_identity_t<NumberT>>> out) {
  constexpr std::size_t block = 64;
  std::size_t n = 0;
  NumberT floor = 0;  // only probabilities above it can still enter
  const auto offer = [&](std::size_t t) {
    if (!(row[t] > floor)) return;
    std::size_t i = n < out.size() ? n++ : n - 1;
    for (; i > 0 && out[i - 1].probability < row[t]; --i)
      out[i] = out[i - 1];
    out[i] = {static_cast<token_id>(t), row[t]};
    if (n == out.size()) floor = out[n - 1].probability;
  };
  if (out.empty()) return 0;
  std::size_t t = 0;
  for (; t + block <= row.size(); t += block) {
    int above = 0;
    for (std::size_t i = 0; i < block; ++i)
      above |= row[t + i] > floor ? 1 : 0;
    if (above == 0) continue;
    for (std::size_t i = 0; i < block; ++i)
      offer(t + i);
  }
  for (; t < row.size(); ++t)
    offer(t);
  return static_cast<std::int32_t>(n);
}

}  // namespace espalier
