// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/verdict.hpp"

// A policy whose trees are rebuilt with other draws: change(row, the tokens drawn at a node in order).
template <class PolicyT>
struct redrawn {
  static constexpr espalier::regime sampling = PolicyT::sampling;
  PolicyT policy;
  std::function<void(std::span<const double>, std::vector<espalier::token_id>&)> change;
  std::vector<espalier::node_id> source{};  // the drawn tree's node of each node

  std::int32_t max_nodes() const { return policy.max_nodes(); }

  std::int32_t max_asked() const { return max_nodes(); }
  std::span<const espalier::node_id> was() const { return source; }

  std::span<const espalier::node_id> begin(espalier::tree<>& tree) {
    source.clear();
    return policy.begin(tree);
  }

  template <class NumberT, class ChanceT>
  std::span<const espalier::node_id> take(espalier::tree<>& tree, const espalier::node_rows<NumberT>& rows,
                                          ChanceT& chance) {
    const std::span<const espalier::node_id> wanted = policy.take(tree, rows, chance);
    if (!wanted.empty()) return wanted;
    const espalier::tree<> drawn = tree;
    const espalier::tree_view from = drawn;
    tree.reset(0);
    source.assign(1, espalier::root_node);
    for (std::size_t i = 0; i < source.size(); ++i) {
      const espalier::node_id u = source[i], to = static_cast<espalier::node_id>(i);
      if (from.is_leaf(u)) continue;
      std::vector<espalier::token_id> tokens;
      for (const espalier::node_id child : from.draws(u))
        tokens.push_back(from.token[child]);
      change(rows.row(u), tokens);
      for (const espalier::token_id token : tokens) {
        const int before = tree.size();
        tree.draw(to, token, static_cast<float>(std::log(rows.row(u)[static_cast<std::size_t>(token)])));
        if (tree.size() > before) source.push_back(from.find_child(u, token));
      }
    }
    return {};
  }

  void observe(espalier::tree_view, espalier::verdict) const {}
};

// What a change must never do: drop what it has drawn for being unlikely.
inline void drop_unlikely(std::span<const double> row, std::vector<espalier::token_id>& tokens) {
  std::erase_if(tokens, [&](espalier::token_id t) { return row[static_cast<std::size_t>(t)] < 0.3; });
}
