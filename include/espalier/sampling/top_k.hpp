// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! A token of a row with its probability.
template <class NumberT>
struct candidate {
  token_id token;
  NumberT probability;
};

namespace detail {

// A list of the most probable tokens of those offered to it. Tokens must be offered in the order of their ids.
template <class NumberT>
class best_candidates {
 public:
  // Pre: out is not empty
  explicit best_candidates(std::span<candidate<NumberT>> out) : out_(out) {}

  std::int32_t size() const { return static_cast<std::int32_t>(n_); }
  // The probability that a token must exceed to be written.
  NumberT floor() const { return floor_; }

  void offer(token_id token, NumberT probability) {
    if (!(probability > floor_)) return;
    std::size_t i = n_ < out_.size() ? n_++ : n_ - 1;
    for (; i > 0 && out_[i - 1].probability < probability; --i)
      out_[i] = out_[i - 1];
    out_[i] = {token, probability};
    if (n_ == out_.size()) floor_ = out_[n_ - 1].probability;
  }

 private:
  std::span<candidate<NumberT>> out_;
  std::size_t n_ = 0;
  NumberT floor_ = 0;
};

}  // namespace detail

//! Writes the k most probable tokens of a row, most probable first, ties by lower id; tokens of probability 0 are left
//! out. Returns the number of tokens written, at most k. It suits a small k: from about 16 on, top_tokens is quicker.
//!
//! Shapes      row [vocab]; out [k]
//! Complexity  one pass; an insertion of O(k) for each token that is among the first k when it is read: about k
//!             ln(vocab / k) tokens if the row is in random order
template <class NumberT>
std::int32_t top_k(std::span<const NumberT> row, std::span<candidate<std::type_identity_t<NumberT>>> out) {
  constexpr std::size_t block = 64;
  if (out.empty()) return 0;
  detail::best_candidates<NumberT> best(out);
  std::size_t t = 0;
  for (; t + block <= row.size(); t += block) {
    int above = 0;
    for (std::size_t i = 0; i < block; ++i)
      above |= row[t + i] > best.floor() ? 1 : 0;
    if (above == 0) continue;
    for (std::size_t i = 0; i < block; ++i)
      best.offer(static_cast<token_id>(t + i), row[t + i]);
  }
  for (; t < row.size(); ++t)
    best.offer(static_cast<token_id>(t), row[t]);
  return best.size();
}

//! Writes the k most probable tokens of node u's row, as top_k(row, out) does. If the drafter lists the tokens of its
//! rows, only the listed ones are read.
//!
//! Pre         rows.has(u)
template <class NumberT>
std::int32_t top_k(const node_rows<NumberT>& rows, node_id u, std::span<candidate<std::type_identity_t<NumberT>>> out) {
  const std::span<const NumberT> row = rows.row(u);
  if (rows.listed == nullptr || out.empty()) return top_k(row, out);
  detail::best_candidates<NumberT> best(out);
  for (const token_id t : rows.listed_tokens(u))
    best.offer(t, row[static_cast<std::size_t>(t)]);
  return best.size();
}

}  // namespace espalier
