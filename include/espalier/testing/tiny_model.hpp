// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/core/token.hpp"

namespace espalier::testing {

//! A target and a draft with so few tokens that every outcome of a round can be run. Each model gives a row, of sum 1,
//! for each path below the root; the root's token is no part of the path.
struct tiny_model {
  using row_function = std::function<std::vector<double>(std::span<const token_id> path)>;

  std::string name;
  std::int32_t vocab;
  row_function target;
  row_function draft;
};

//! A random-looking number made from a key (SplitMix64).
inline std::uint64_t mixed(std::uint64_t key) {
  key += 0x9E3779B97F4A7C15U;
  key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9U;
  key = (key ^ (key >> 27)) * 0x94D049BB133111EBU;
  return key ^ (key >> 31);
}

//! A random-looking number in [0, 1) made from a key.
inline double mixed_unit(std::uint64_t key) {
  return static_cast<double>(mixed(key) >> 11) * 0x1.0p-53;
}

//! The weights divided by their sum.
inline std::vector<double> normalised(std::vector<double> row) {
  double total = 0;
  for (const double x : row)
    total += x;
  for (double& x : row)
    x /= total;
  return row;
}

//! Rows that depend irregularly on the path. About one in `zeros` probabilities is 0 (0: none); the others have one of
//! `levels` sizes (0: any), so that there are ties.
inline tiny_model::row_function irregular(std::uint64_t seed, std::int32_t vocab, unsigned zeros, unsigned levels) {
  return [=](std::span<const token_id> path) {
    std::uint64_t key = seed;
    for (const token_id t : path)
      key = mixed(key ^ static_cast<std::uint64_t>(t + 1));
    std::vector<double> row;
    for (std::int32_t t = 0; t < vocab; ++t) {
      const std::uint64_t x = mixed(key + static_cast<std::uint64_t>(t) * 77);
      const bool zero = zeros > 0 && x % zeros == 0;
      row.push_back(zero ? 0.0 : levels > 0 ? 1.0 + static_cast<double>((x >> 20) % levels) : 0.05 + mixed_unit(x));
    }
    if (std::all_of(row.begin(), row.end(), [](double p) { return p == 0; })) row[key % row.size()] = 1;
    return normalised(row);
  };
}

//! Rows with all probability on one token: `first` at even depths, `first + step` at odd ones.
inline tiny_model::row_function certain(std::int32_t vocab, std::int32_t first, std::int32_t step) {
  return [=](std::span<const token_id> path) {
    std::vector<double> row(static_cast<std::size_t>(vocab), 0.0);
    const auto depth = static_cast<std::int32_t>(path.size());
    row[static_cast<std::size_t>((std::min)(first + step * (depth % 2), vocab - 1))] = 1;
    return row;
  };
}

//! The given rows without the tokens for which forbids(path, token) is true, normalised: as if a model gave these
//! tokens logits of minus infinity.
template <class ForbidsT>
tiny_model::row_function masked(tiny_model::row_function row, ForbidsT forbids) {
  return [=](std::span<const token_id> path) {
    std::vector<double> left = row(path);
    for (std::size_t t = 0; t < left.size(); ++t)
      left[t] = forbids(path, static_cast<token_id>(t)) ? 0.0 : left[t];
    return normalised(left);
  };
}

//! The given rows with all probability on the most probable token, the first of equal ones: a target at temperature 0.
inline tiny_model::row_function argmax_only(tiny_model::row_function row) {
  return [=](std::span<const token_id> path) {
    std::vector<double> sharp = row(path);
    const auto best = std::max_element(sharp.begin(), sharp.end()) - sharp.begin();
    std::fill(sharp.begin(), sharp.end(), 0.0);
    sharp[static_cast<std::size_t>(best)] = 1;
    return sharp;
  };
}

//! Models of 1 to 4 tokens with all kinds of rows on which a verifier can be wrong: rows that are alike, tied, certain
//! or disjoint, with zeros in target or draft, with the holes of a padded vocabulary or a grammar.
inline std::vector<tiny_model> tiny_models() {
  std::vector<tiny_model> list;
  for (const std::int32_t vocab : {2, 3, 4}) {
    const std::string v = ", vocabulary " + std::to_string(vocab);
    const auto p = irregular(100, vocab, 0, 0);
    list.push_back({"unlike" + v, vocab, p, irregular(200, vocab, 0, 0)});
    list.push_back({"p = q" + v, vocab, p, p});
    list.push_back({"zeros in p" + v, vocab, irregular(101, vocab, 2, 0), irregular(201, vocab, 0, 0)});
    list.push_back({"zeros in q" + v, vocab, p, irregular(202, vocab, 2, 0)});
    list.push_back({"zeros in both" + v, vocab, irregular(103, vocab, 2, 0), irregular(203, vocab, 2, 0)});
    list.push_back({"ties" + v, vocab, irregular(104, vocab, 0, 2), irregular(204, vocab, 0, 1)});
    list.push_back({"disjoint" + v, vocab, certain(vocab, 0, 0), certain(vocab, 1, 1)});
    list.push_back({"certain target" + v, vocab, certain(vocab, 0, 1), irregular(205, vocab, 0, 0)});
  }
  list.push_back({"one token", 1, irregular(1, 1, 0, 0), irregular(2, 1, 0, 0)});
  const auto p = irregular(106, 3, 0, 0), q = irregular(206, 3, 0, 0);
  const auto padding = [](std::span<const token_id>, token_id t) { return t == 2; };
  const auto grammar = [](std::span<const token_id> path, token_id t) {
    return t == (path.empty() ? 1 : (path.back() + 1) % 3);
  };
  list.push_back({"holes in both: a padded vocabulary", 3, masked(p, padding), masked(q, padding)});
  list.push_back({"holes in q: a draft of fewer tokens", 3, p, masked(q, padding)});
  list.push_back({"holes in p: a grammar", 3, masked(p, grammar), q});
  list.push_back({"holes in both: a grammar, a draft of fewer tokens", 3, masked(p, grammar), masked(q, padding)});
  return list;
}

//! Models of 32 tokens with few probable ones, for rounds that are drawn: a draft that is near the target, one that is
//! far from it, and one with zeros in both rows.
inline std::vector<tiny_model> wide_models() {
  constexpr std::int32_t vocab = 32;
  const auto peaked = [](std::uint64_t seed, unsigned zeros, double sharpness) -> tiny_model::row_function {
    return [row = irregular(seed, vocab, zeros, 0), sharpness](std::span<const token_id> path) {
      std::vector<double> sharp = row(path);
      for (double& x : sharp)
        x = std::pow(x * vocab, sharpness);
      return normalised(sharp);
    };
  };
  const auto near = [](tiny_model::row_function p, tiny_model::row_function q) -> tiny_model::row_function {
    return [p = std::move(p), q = std::move(q)](std::span<const token_id> path) {
      std::vector<double> mixed = p(path);
      const std::vector<double> other = q(path);
      for (std::size_t t = 0; t < mixed.size(); ++t)
        mixed[t] = 0.7 * mixed[t] + 0.3 * other[t];
      return normalised(mixed);
    };
  };
  const auto p = peaked(500, 0, 5), r = peaked(501, 4, 4);
  return {{"near, vocabulary 32", vocab, p, near(p, peaked(510, 0, 2))},
          {"far, vocabulary 32", vocab, p, peaked(511, 0, 5)},
          {"zeros in both, vocabulary 32", vocab, r, near(r, peaked(512, 3, 4))}};
}

}  // namespace espalier::testing
