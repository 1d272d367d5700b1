// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/testing/random_tree.hpp"

// Proposes the same run every round, and keeps what it is told.
struct fixed_run {
  std::vector<espalier::token_id> run{};
  std::int32_t longest = 1 << 20;
  std::vector<espalier::token_id> text{};
  std::int32_t reserved = 0;
  int asked = 0;

  void begin(std::span<const espalier::token_id> context) { text.assign(context.begin(), context.end()); }
  void commit(espalier::tree_view tree, espalier::verdict v) {
    for (const espalier::node_id u : espalier::testing::path_to(tree, v.accepted)) {
      if (u != espalier::root_node) text.push_back(tree.token[u]);
    }
    text.push_back(v.token);
  }
  void reserve(std::int32_t n) { reserved = std::max(n, reserved); }
  std::int32_t capacity() const { return longest; }
  espalier::token_run propose_run(std::int32_t most) {
    ++asked;
    return {std::span<const espalier::token_id>(run).first(std::min(run.size(), static_cast<std::size_t>(most)))};
  }
};

// What it is shown of hidden states, in rows.
struct fixed_reader : fixed_run {
  std::int32_t read_rows = 0;
  bool right = true;

  std::int32_t n_read() const { return read_rows; }
  template <class BackendT>
  void read(const BackendT&, std::span<const std::int32_t> rows) {
    read_rows += static_cast<std::int32_t>(rows.size());
  }
  void begin(std::span<const espalier::token_id> context) {
    read_rows = 0;
    fixed_run::begin(context);
  }
  espalier::token_run propose_run(std::int32_t most) {
    right = right && read_rows == static_cast<std::int32_t>(text.size()) - 1;
    return fixed_run::propose_run(most);
  }
};

// The tree, written as "parent>token" node by node.
inline std::string text_of(espalier::tree_view tree) {
  std::ostringstream text;
  for (espalier::node_id u = 1; u < tree.n_nodes; ++u)
    text << (u > 1 ? " " : "") << tree.parent[u] << '>' << tree.token[u];
  return text.str();
}

template <class PolicyT, class DrafterT>
espalier::tree<> grown(PolicyT& policy, DrafterT& drafter, std::int32_t limit = 1 << 20) {
  espalier::tree<> t(espalier::most_asked(policy));
  t.reset(0, limit);
  espalier::philox_chance chance(1, 0, 0);
  drafter.reserve(t.capacity());
  espalier::grow(policy, t, drafter, chance);
  return t;
}
