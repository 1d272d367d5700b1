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

//! A target and a draft for tests; most have so few possible tokens that every outcome of a round can be run. Each
//! model gives a row, of sum 1, for each path below the root; the root's token is no part of the path.
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

//! Rows that depend irregularly on the path. About one in `zeros` probabilities is 0, or none if `zeros` is 0. The
//! others have one of `levels` sizes, so that there are ties, or any size if `levels` is 0.
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
    if (std::all_of(row.begin(), row.end(), [](double p) { return p == 0; }))
      row[static_cast<std::size_t>(key % row.size())] = 1;
    return normalised(row);
  };
}

//! Rows with all probability on one token: `first` at even depths, `first + step` at odd ones, or the vocabulary's last
//! token if that number is beyond it.
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

//! Rows over a large vocabulary in which only the given tokens are possible: the i-th of them has the probability that
//! `row` gives to token i.
inline tiny_model::row_function scattered(tiny_model::row_function row, std::int32_t vocab,
                                          std::vector<token_id> tokens) {
  return [=](std::span<const token_id> path) {
    std::vector<token_id> numbers;
    for (const token_id t : path)
      numbers.push_back(static_cast<token_id>(std::find(tokens.begin(), tokens.end(), t) - tokens.begin()));
    const std::vector<double> few = row(numbers);
    std::vector<double> wide(static_cast<std::size_t>(vocab), 0.0);
    for (std::size_t i = 0; i < few.size(); ++i)
      wide[static_cast<std::size_t>(tokens[i])] = few[i];
    return wide;
  };
}

//! The given rows after paths of `depth` tokens. Rows before that have all probability on token 0 at even depths, and
//! on token 1 at odd ones.
inline tiny_model::row_function deep(tiny_model::row_function row, std::int32_t vocab, std::int32_t depth) {
  return [=, first = certain(vocab, 0, 1)](std::span<const token_id> path) {
    return static_cast<std::int32_t>(path.size()) < depth ? first(path)
                                                          : row(path.subspan(static_cast<std::size_t>(depth)));
  };
}

//! A flat target and a sharp draft of 3 tokens: the residual changes with each of many rejected draws.
inline tiny_model sharp_draft_model() {
  const auto q = irregular(212, 3, 0, 0);
  return {"a flat target and a sharp draft", 3, irregular(112, 3, 0, 2), [q](std::span<const token_id> path) {
            std::vector<double> row = q(path);
            for (double& x : row)
              x *= 0.1;
            row[path.size() % 3] += 0.9;
            return row;
          }};
}

//! A flat target, and a draft of 7 tokens each of which is a fifth as probable as the one before: the residual changes
//! with each rejected draw, also if draws are made without replacement.
inline tiny_model steep_draft_model() {
  return {"a flat target and a steep draft", 7, irregular(113, 7, 0, 2), [](std::span<const token_id>) {
            std::vector<double> row{1};
            while (row.size() < 7)
              row.push_back(row.back() / 5);
            return normalised(row);
          }};
}

//! A model over which every outcome can be run far below the root: target and draft are certain of the same tokens
//! before `depth`.
inline tiny_model deep_model(std::int32_t depth) {
  return {"after " + std::to_string(depth) + " certain tokens", 2, deep(irregular(107, 2, 0, 0), 2, depth),
          deep(irregular(207, 2, 0, 0), 2, depth)};
}

//! Models with rows that no model of tiny_models() has: probabilities down to 1e-9, rows that are nearly alike, n
//! possible tokens, and up to 70,000 tokens of which few are possible.
inline std::vector<tiny_model> far_models(std::int32_t n) {
  const auto steep = [](std::uint64_t seed, double ratio) -> tiny_model::row_function {
    return [row = irregular(seed, 4, 0, 0), ratio](std::span<const token_id> path) {
      const std::vector<double> of = row(path);
      std::vector<double> sharp;
      for (const double x : of)
        sharp.push_back(std::pow(ratio, std::count_if(of.begin(), of.end(), [x](double y) { return y > x; })));
      return normalised(sharp);
    };
  };
  const auto p = irregular(108, 4, 0, 0), q = irregular(208, 4, 0, 0);
  const auto nearly = [p, q](std::span<const token_id> path) {
    std::vector<double> row = p(path);
    const std::vector<double> other = q(path);
    for (std::size_t t = 0; t < row.size(); ++t)
      row[t] += 1e-7 * (other[t] - row[t]);
    return normalised(row);
  };
  std::vector<tiny_model> list{
      {"probabilities down to 3e-5", 4, steep(111, 0.03), steep(211, 0.03)},
      {"probabilities down to 1e-9", 4, steep(117, 1e-3), steep(208, 1e-3)},
      {"rows that are nearly alike", 4, p, nearly},
      {std::to_string(n) + " possible tokens", n, irregular(109, n, 0, 0), irregular(209, n, 9, 0)}};
  const auto add = [&](std::int32_t vocab, const std::vector<token_id>& tokens) {
    const auto few = static_cast<std::int32_t>(tokens.size());
    list.push_back({std::to_string(few) + " possible tokens of " + std::to_string(vocab), vocab,
                    scattered(irregular(110, few, 0, 0), vocab, tokens),
                    scattered(irregular(210, few, 4, 0), vocab, tokens)});
  };
  add(67, {0, 15, 16, 31, 32, 63, 64, 66});
  add(1001, {0, 127, 128, 255, 256, 1000});
  add(70'000, {1, 65'536, 69'999});
  return list;
}

//! Models of 32 tokens, of which few are probable, for tests that run rounds at random instead of every outcome: one
//! with a draft near the target, one with a draft far from it, and one with zeros in both rows.
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
  const auto close_to = [](tiny_model::row_function p, tiny_model::row_function q) -> tiny_model::row_function {
    return [p = std::move(p), q = std::move(q)](std::span<const token_id> path) {
      std::vector<double> mixed = p(path);
      const std::vector<double> other = q(path);
      for (std::size_t t = 0; t < mixed.size(); ++t)
        mixed[t] = 0.7 * mixed[t] + 0.3 * other[t];
      return normalised(mixed);
    };
  };
  const auto p = peaked(500, 0, 5), r = peaked(501, 4, 4);
  return {{"near, vocabulary 32", vocab, p, close_to(p, peaked(510, 0, 2))},
          {"far, vocabulary 32", vocab, p, peaked(511, 0, 5)},
          {"zeros in both, vocabulary 32", vocab, r, close_to(r, peaked(512, 3, 4))}};
}

}  // namespace espalier::testing
