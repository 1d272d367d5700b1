// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/util/byte_reader.hpp"
#include "espalier/core/util/byte_writer.hpp"
#include "espalier/decoder/check_growth.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/testing/law_error.hpp"
#include "espalier/testing/row_drafter.hpp"

namespace espalier::testing {

namespace detail {

// Returns a policy that has loaded what `policy` has saved; `unused` is a policy with the same options.
template <SavedPolicy PolicyT>
PolicyT reloaded(PolicyT& policy, const PolicyT& unused) {
  std::vector<std::byte> bytes;
  byte_writer write(bytes, "policy", 1);
  policy.serialize(write);
  write.finish();
  byte_reader read(bytes, "policy", 1);
  PolicyT loaded = unused;
  loaded.serialize(read);
  read.finish();
  return loaded;
}

inline bool equal(tree_view a, tree_view b) {
  return a.n_nodes == b.n_nodes && a.n_draws == b.n_draws && std::equal(a.token, a.token + a.n_nodes, b.token) &&
         std::equal(a.parent, a.parent + a.n_nodes, b.parent);
}

}  // namespace detail

//! Checks the laws of TreePolicy on 60 rounds with different rows and budgets: the nodes that the policy asks about and
//! their order, the budget, the trees by check_growth(), and that a copy of the policy, and a policy that loads what
//! this one saved, go on in the same way. Laws that need every outcome are checked by check_lossless() and
//! check_chance_keys().
//!
//! Errors      law_error or input_error with what is wrong
template <class PolicyT>
void check_tree_policy(PolicyT policy) {
  require_law(policy.max_nodes() >= 0, "max_nodes() is ", policy.max_nodes(), ", but must not be negative.");
  const PolicyT unused = policy;
  std::mt19937 random(4);
  std::int32_t most_draws = 0;
  for (int round = 0; round < 60; ++round) {
    const auto seed = static_cast<std::uint32_t>(round);
    const int sharpness = round % 4;
    row_drafter drafter(7, [&](std::span<const token_id> path) {
      std::uint32_t key = seed;
      for (const token_id t : path)
        key = key * 131 + static_cast<std::uint32_t>(t) + 1;
      std::mt19937 numbers(key);
      std::vector<double> row(7);
      double total = 0;
      for (double& p : row)
        total += p = std::pow(static_cast<double>(numbers() % 6), sharpness + 1);
      if (total == 0) total = row[numbers() % 7] = 1;
      for (double& p : row)
        p /= total;
      return row;
    });
    drafter.reserve(most_asked(policy));
    // The budget of a round is that of the policy or the tree, whichever is less.
    tree<> t(most_asked(policy) + 9);
    const int limit = round % 3 == 0 ? round / 3 : most_asked(policy) + round % 10;
    t.reset(3, limit);
    philox_chance chance(1, 0, seed);
    const auto grown = [&](PolicyT another) {
      tree<> of(t.capacity());
      of.reset(3, limit);
      grow(another, of, drafter, chance);
      return of;
    };
    const tree<> of_copy = grown(policy);
    tree<> of_loaded = of_copy;
    if constexpr (SavedPolicy<PolicyT>) of_loaded = grown(detail::reloaded(policy, unused));
    grow(policy, t, drafter, chance);
    const tree_view view = t;
    require_law(detail::equal(of_copy.view(), view), "a copy of the policy grows another tree.");
    require_law(detail::equal(of_loaded.view(), view),
                "a policy that has loaded what this one saved grows another tree.");
    if (round % 3 != 0 && sharpness == 0) most_draws = (std::max)(most_draws, view.n_draws);
    require_law(view.token[0] == 3, "the policy has changed the root's token.");
    check_growth<PolicyT::sampling>(view, drafter.rows());
    policy.observe(view, {static_cast<node_id>(random() % static_cast<unsigned>(view.n_nodes)), 0});
  }
  require_law((most_draws > 0) == (policy.max_nodes() > 0), "the policy drafts at most ", most_draws,
              " tokens, but its max_nodes() is ", policy.max_nodes(), ".");
}

}  // namespace espalier::testing
