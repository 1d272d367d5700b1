// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/testing/enumerating_chance.hpp"

// One node, its draws, and what a verifier makes of them: trees of one level, with every outcome run.
namespace one_node {

using espalier::node_id;
using espalier::root_node;
using espalier::token_id;
using row_type = std::vector<double>;
using list_type = std::vector<token_id>;

// The row of the root; after any child the target is certain, so that nothing else is left to chance.
struct rows {
  std::span<const double> root;
  row_type certain = row_type(root.size(), 0.0);
  explicit rows(std::span<const double> row) : root(row) { certain[0] = 1; }
  bool has(node_id u) const { return u == root_node; }
  std::span<const double> row(node_id u) const { return u == root_node ? root : std::span<const double>(certain); }
};

inline espalier::tree<> tree_of(const list_type& list) {
  espalier::tree<> tree(static_cast<int>(list.size()));
  tree.reset(0);
  for (const token_id x : list)
    tree.draw(root_node, x, 0);
  return tree;
}

// The distribution of the token that a verifier emits at the root, given its draws.
template <class VerifierT>
row_type output_distribution(VerifierT& verifier, const row_type& p, const row_type& q, const list_type& list) {
  const espalier::tree<> tree = tree_of(list);
  const espalier::tree_view view = tree;
  const rows draft(q);
  rows target(p);
  row_type distribution(p.size(), 0.0);
  espalier::enumerating_chance chance;
  do {
    const espalier::verdict v = verifier.verify(view, draft, target, chance);
    const token_id first = v.accepted == root_node ? v.token : view.token[v.accepted];
    distribution[static_cast<std::size_t>(first)] += chance.probability();
  } while (chance.next());
  return distribution;
}

// Calls f(list, probability) for every list of k draws from q that can occur.
template <class FunctionT>
void for_each_list(const row_type& q, int k, const FunctionT& f) {
  list_type support;
  for (std::size_t t = 0; t < q.size(); ++t) {
    if (q[t] > 0) support.push_back(static_cast<token_id>(t));
  }
  std::vector<std::size_t> chosen(static_cast<std::size_t>(k), 0);
  for (;;) {
    list_type list;
    double probability = 1;
    for (const std::size_t c : chosen) {
      list.push_back(support[c]);
      probability *= q[static_cast<std::size_t>(support[c])];
    }
    f(list, probability);
    std::size_t i = 0;
    while (i < chosen.size() && ++chosen[i] == support.size())
      chosen[i++] = 0;
    if (i == chosen.size()) return;
  }
}

// The same with the most probable draws first, or without repeated ones: both bias verifiers of independent draws.
inline void sort_by(const row_type& q, list_type& list) {
  std::stable_sort(list.begin(), list.end(), [&](token_id a, token_id b) {
    return q[static_cast<std::size_t>(a)] > q[static_cast<std::size_t>(b)];
  });
}
inline void drop_repeated(list_type& list) {
  list_type kept;
  for (const token_id x : list) {
    if (std::find(kept.begin(), kept.end(), x) == kept.end()) kept.push_back(x);
  }
  list = kept;
}

inline double distance(std::span<const double> a, std::span<const double> b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

// How far from p the emitted token is distributed when the draws are `k` from q, each list changed by `change` first.
template <class VerifierT, class ChangeT>
double bias(VerifierT& verifier, const row_type& p, const row_type& q, int k, const ChangeT& change) {
  row_type distribution(p.size(), 0.0);
  for_each_list(q, k, [&](list_type list, double probability) {
    change(list);
    const row_type given = output_distribution(verifier, p, q, list);
    for (std::size_t t = 0; t < distribution.size(); ++t)
      distribution[t] += probability * given[t];
  });
  return distance(distribution, p);
}

template <class VerifierT>
double bias(VerifierT& verifier, const row_type& p, const row_type& q, int k) {
  return bias(verifier, p, q, k, [](list_type&) {});
}

// Two rows that ask for trouble.
struct model {
  std::string name;
  row_type p, q;
};

inline row_type scaled(row_type row) {
  double total = 0;
  for (const double x : row)
    total += x;
  for (double& x : row)
    x /= total;
  return row;
}

inline std::vector<model> models(int vocab, std::uint32_t seed) {
  std::mt19937 random(seed * 1000 + static_cast<std::uint32_t>(vocab));
  const auto n = static_cast<std::size_t>(vocab);
  const auto unit = [&] { return (static_cast<double>(random()) + 0.5) / 4294967296.0; };
  const auto row = [&](auto weight) {
    row_type r;
    for (std::size_t t = 0; t < n; ++t)
      r.push_back(weight());
    if (*std::max_element(r.begin(), r.end()) <= 0) r[random() % n] = 1;
    return scaled(r);
  };
  const auto dense = [&] { return -std::log(unit()); };
  const auto sparse = [&] { return random() % 2 == 0 ? 0.0 : unit(); };
  const auto tied = [&] { return 1.0 + static_cast<double>(random() % 2); };
  const auto peaked = [&] { return std::exp(12 * unit()); };
  const auto one_hot = [&] {
    row_type r(n, 0.0);
    r[random() % n] = 1;
    return r;
  };
  std::vector<model> all;
  all.push_back({"dense", row(dense), row(dense)});
  all.push_back({"peaked", row(peaked), row(peaked)});
  all.push_back({"zeros in p", row(sparse), row(dense)});
  all.push_back({"zeros in q", row(dense), row(sparse)});
  all.push_back({"zeros in both", row(sparse), row(sparse)});
  all.push_back({"ties", row(tied), row(tied)});
  const row_type same = row(dense);
  all.push_back({"equal", same, same});
  row_type near = same;
  for (double& x : near)
    x *= 1 + 1e-7 * unit();
  all.push_back({"nearly equal", same, scaled(near)});
  row_type left(n, 0.0), right(n, 0.0);
  for (std::size_t t = 0; t < n; ++t)
    (2 * t < n ? left : right)[t] = dense();
  if (n > 1) all.push_back({"disjoint", scaled(left), scaled(right)});
  all.push_back({"certain p", one_hot(), row(dense)});
  all.push_back({"certain q", row(dense), one_hot()});
  return all;
}

// The verifier's token is distributed as the target's, for every list of draws together.
template <class VerifierT>
void require_lossless(VerifierT& verifier, std::uint32_t n_seeds, std::initializer_list<int> vocabs,
                      std::initializer_list<int> draws) {
  for (std::uint32_t seed = 0; seed < n_seeds; ++seed) {
    for (const int vocab : vocabs) {
      for (const auto& m : models(vocab, seed)) {
        for (const int k : draws) {
          INFO(m.name << ", seed " << seed << ", vocabulary " << vocab << ", " << k << " draws");
          REQUIRE(bias(verifier, m.p, m.q, k) < 1e-12);
        }
      }
    }
  }
}

}  // namespace one_node
