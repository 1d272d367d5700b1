// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/tree_policy/cost_aware/cost_aware_options.hpp"

// Texts of which it is said beforehand where the target follows the draft.
namespace written_text {

using namespace espalier;

inline constexpr std::int32_t vocab = 6;

// At every node the same row: token 0 with this probability, the others alike.
inline testing::row_drafter sure_drafter(double probability) {
  return testing::row_drafter(vocab, [=](std::span<const token_id>) {
    std::vector<double> row(vocab, (1 - probability) / (vocab - 1));
    row[0] = probability;
    return row;
  });
}

// A text that is written without models. The target's next token is the draft's best one in a share of the places.
template <class PolicyT>
struct written {
  PolicyT policy;
  cost_model costs;
  double sureness = 0.8;
  std::int32_t length = 100;  // of the text
  int unread = 0;             // tokens that the draft has not seen
  double seconds = 0;
  int tokens = 0, rounds = 0, asked_rounds = 0;
  std::vector<std::int32_t> sizes{};

  // share(place in the text): whether the target follows the draft there.
  template <class FollowsT>
  void round(const FollowsT& follows) {
    testing::row_drafter drafter = sure_drafter(sureness);
    tree<> t(most_asked(policy));
    t.reset(0);
    drafter.reserve(t.capacity());
    philox_chance chance(3, 0, static_cast<std::uint32_t>(rounds));
    policy.open({.length = length});
    espalier::grow(policy, t, drafter, chance);
    const tree_view view = t;
    verdict v;
    for (;;) {
      v.token = follows(length + view.depth[v.accepted]) ? 0 : vocab;
      const node_id child = view.find_child(v.accepted, v.token);
      if (child == no_node) break;
      v.accepted = child;
    }
    policy.observe(view, v);
    std::vector<int> level(static_cast<std::size_t>(view.n_nodes) + 1, 0);
    for (int pass = 0; pass < drafter.passes; ++pass)
      seconds += costs.draft_pass(1 + (pass == 0 ? unread : 0), length - 1);
    seconds += costs.target_pass(view.n_nodes, length - 1) + (drafter.passes > 0 ? costs.opening : 0);
    const int committed = view.depth[v.accepted] + 1;
    unread = drafter.passes > 0 ? 0 : unread + committed;
    length += committed;
    tokens += committed;
    ++rounds;
    asked_rounds += drafter.passes > 0 ? 1 : 0;
    sizes.push_back(view.n_nodes - 1);
  }
};

template <class PolicyT>
written<PolicyT> text(const cost_model& costs, cost_aware_options options = {}) {
  return {PolicyT(options, costs), costs};
}

inline cost_model usual() {
  return cost_aware_options{}.costs();
}

inline const auto always = [](std::int32_t) { return true; };
inline const auto never = [](std::int32_t) { return false; };

}  // namespace written_text
