// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/enumerating_chance.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/verdict.hpp"
#include "text_models.hpp"
#include "tree_policy/row_drafter.hpp"

// Tiny worlds in which every outcome of a round can be run, and the law of what is emitted summed up.
namespace worlds {

using espalier::node_id;
using espalier::token_id;
using text_type = std::vector<token_id>;
using law_type = std::map<text_type, double>;
using row_function = std::function<std::vector<double>(std::span<const token_id> path)>;

// Target and draft, each a row for each path below the root (whose token is not a part of it).
struct world {
  std::string name;
  std::int32_t vocab;
  row_function target;
  row_function draft;
};

inline std::vector<double> normalised(std::vector<double> row) {
  double total = 0;
  for (const double x : row)
    total += x;
  for (double& x : row)
    x /= total;
  return row;
}

// An irregular row of the path; about one in `zeros` weights is zero (0: none), `levels` values make ties.
inline row_function irregular(std::uint64_t seed, std::int32_t vocab, unsigned zeros, unsigned levels) {
  return [=](std::span<const token_id> path) {
    std::uint64_t key = seed;
    for (const token_id t : path)
      key = models::mix(key ^ static_cast<std::uint64_t>(t + 1));
    std::vector<double> row;
    for (std::int32_t t = 0; t < vocab; ++t) {
      const std::uint64_t x = models::mix(key + static_cast<std::uint64_t>(t) * 77);
      const bool zero = zeros > 0 && x % zeros == 0;
      row.push_back(zero ? 0.0 : levels > 0 ? 1.0 + static_cast<double>((x >> 20) % levels) : 0.05 + models::unit(x));
    }
    double total = 0;
    for (const double p : row)
      total += p;
    if (total == 0) row[key % row.size()] = 1;
    return normalised(row);
  };
}

// Everything on one token, which is `first` at the root and the next one a step further down.
inline row_function certain(std::int32_t vocab, std::int32_t first, std::int32_t step) {
  return [=](std::span<const token_id> path) {
    std::vector<double> row(static_cast<std::size_t>(vocab), 0.0);
    const auto depth = static_cast<std::int32_t>(path.size());
    row[static_cast<std::size_t>(std::min(first + step * (depth % 2), vocab - 1))] = 1;
    return row;
  };
}

inline std::vector<world> all() {
  std::vector<world> list;
  for (const std::int32_t vocab : {2, 3, 4}) {
    const std::string v = ", vocabulary " + std::to_string(vocab);
    const row_function p = irregular(100, vocab, 0, 0);
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
  return list;
}

// Probabilities of the first n tokens when each comes from row(text so far).
inline void continue_with(const row_function& row, text_type text, double probability, std::size_t n, law_type& law) {
  if (text.size() >= n) {
    text.resize(n);
    law[text] += probability;
    return;
  }
  const std::vector<double> next = row(text);
  for (std::size_t t = 0; t < next.size(); ++t) {
    if (next[t] == 0) continue;
    text.push_back(static_cast<token_id>(t));
    continue_with(row, text, probability * next[t], n, law);
    text.pop_back();
  }
}

inline double distance(const law_type& a, const law_type& b) {
  double most = 0;
  // What is not a number is as far as can be.
  const auto take = [&](double d) { most = !(std::abs(d) <= most) ? (std::isnan(d) ? 1.0 : std::abs(d)) : most; };
  for (const auto& [text, p] : a) {
    const auto found = b.find(text);
    take(p - (found == b.end() ? 0.0 : found->second));
  }
  for (const auto& [text, p] : b)
    take(a.count(text) == 0 ? p : 0.0);
  return most;
}

// Target rows by node, in double.
struct exact_rows {
  std::vector<std::vector<double>> law;
  std::span<const double> row(node_id u) const { return law[static_cast<std::size_t>(u)]; }
  token_id argmax(node_id u) const {
    const auto r = row(u);
    return static_cast<token_id>(std::max_element(r.begin(), r.end()) - r.begin());
  }
};

// What one round emits, with its probability: the policy's trees over the draft, judged by the verifier.
template <class PolicyT, class VerifierT>
law_type one_round(const world& w, PolicyT policy, VerifierT verifier, std::int64_t& outcomes) {
  law_type law;
  espalier::enumerating_chance chance;
  row_drafter drafter(w.vocab, [&](std::span<const token_id> path) { return w.draft(path.subspan(1)); });
  drafter.reserve(espalier::most_asked(policy));
  espalier::tree<> tree(espalier::most_asked(policy));
  do {
    PolicyT fresh = policy;
    tree.reset(0);
    fresh.grow(tree, drafter, chance);
    const espalier::tree_view view = tree;
    exact_rows target;
    text_type path;
    for (node_id u = 0; u < view.n_nodes; ++u) {
      path.clear();
      for (node_id a = u; a != espalier::root_node; a = view.parent[a])
        path.insert(path.begin(), view.token[a]);
      target.law.push_back(w.target(path));
    }
    const espalier::verdict v = verifier.verify(view, drafter.rows(), target, chance);
    text_type text{v.token};
    for (node_id a = v.accepted; a != espalier::root_node; a = view.parent[a])
      text.insert(text.begin(), view.token[a]);
    law[text] += chance.probability();
    ++outcomes;
  } while (chance.next());
  return law;
}

// How far the first n tokens are from the target's law when one round begins them and the target goes on.
template <class PolicyT, class VerifierT>
double bias(const world& w, PolicyT policy, VerifierT verifier, std::size_t n, std::int64_t& outcomes) {
  law_type expected, law;
  continue_with(w.target, {}, 1.0, n, expected);
  for (const auto& [text, probability] : one_round(w, policy, verifier, outcomes))
    continue_with(w.target, text, probability, n, law);
  return distance(law, expected);
}

}  // namespace worlds
