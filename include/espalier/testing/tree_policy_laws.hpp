// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/util/byte_reader.hpp"
#include "espalier/core/util/byte_writer.hpp"
#include "espalier/testing/coverage.hpp"
#include "espalier/testing/law_error.hpp"
#include "espalier/testing/rounds.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/testing/tested_parts.hpp"
#include "espalier/testing/traced_chance.hpp"

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

// The deepest node of a tree, the first of equally deep ones.
inline node_id deepest_node(tree_view tree) {
  return static_cast<node_id>(std::max_element(tree.depth, tree.depth + tree.n_nodes) - tree.depth);
}

// A token that no child of the node has.
inline token_id other_token(tree_view tree, node_id u) {
  token_id t = 0;
  while (tree.find_child(u, t) != no_node)
    ++t;
  return t;
}

// Returns a verdict on a tree: it rejects everything if `third` is 0, accepts the deepest path if `third` is 1, and
// accepts the path to a random node if `third` is 2.
inline verdict verdict_of(tree_view tree, int third, std::mt19937& random) {
  const auto any = static_cast<node_id>(random() % static_cast<unsigned>(tree.n_nodes));
  const node_id accepted = third == 0 ? root_node : third == 1 ? deepest_node(tree) : any;
  return {accepted, other_token(tree, accepted)};
}

// A row of `vocab` tokens that depends irregularly on seed and path; a few of its probabilities are 0.
inline std::vector<double> row_after(std::span<const token_id> path, std::uint32_t seed, std::int32_t vocab,
                                     int sharpness) {
  std::uint32_t key = seed;
  for (const token_id t : path)
    key = key * 131 + static_cast<std::uint32_t>(t) + 1;
  std::mt19937 numbers(key);
  std::vector<double> row(static_cast<std::size_t>(vocab));
  double total = 0;
  for (double& p : row)
    total += p = std::pow(static_cast<double>(numbers() % 6), sharpness + 1);
  if (total == 0) total = row[numbers() % row.size()] = 1;
  for (double& p : row)
    p /= total;
  return row;
}

}  // namespace detail

//! Checks the laws of TreePolicy on 180 rounds with vocabularies of 7, 40 and 300 tokens, different rows, and room for
//! drafted tokens from none to more than the budget, after rejections, after acceptances, and after any verdicts:
//!
//! - the policy asks about nodes of the tree, each once and after its parent, and keeps its budget;
//! - each drawn token is one pick from the drafter's row (without the tokens that were drawn there before, in the
//!   regime without_replacement), and all picks are kept, in their order; each has a key of its own;
//! - the tree is of the policy's regime, by check_growth();
//! - a copy of the policy, and a policy that loads what this one saved, go on in the same way.
//!
//! Faults that show only over every outcome, such as a number of draws that depends on the tokens drawn, are left to
//! check_lossless().
//!
//!     std::cout << testing::check_tree_policy(my_policy());
//!
//! Errors      law_error or input_error with what is wrong
template <class PolicyT>
coverage check_tree_policy(PolicyT policy) {
  require_law(policy.max_nodes() >= 0, "max_nodes() is ", policy.max_nodes(), ", but must not be negative.");
  const PolicyT unused = policy;
  std::mt19937 random(4);
  std::int32_t most_draws = 0;
  coverage covered;
  const std::int32_t asked = most_asked(policy);
  for (int round = 0; round < 180; ++round) {
    const auto seed = static_cast<std::uint32_t>(round);
    const int sharpness = round % 4;
    constexpr std::int32_t vocabularies[] = {7, 40, 7, 300};
    const std::int32_t vocab = vocabularies[(round + round / 4) % 4];
    row_drafter drafter(
        vocab, [&](std::span<const token_id> path) { return detail::row_after(path, seed, vocab, sharpness); });
    drafter.reserve(asked);
    const token_id root = round % 7;
    // A round drafts no more than the policy's budget, nor more than the tree's limit, which is cut in two of three
    // rounds.
    tree<> t(asked + 9);
    const bool is_cut = round % 3 != 0;
    const int limit = is_cut ? (round / 3 * 2 + round % 3 - 1) % (asked + 1) : asked + round % 10;
    t.reset(root, limit);
    const philox_chance numbers(1, 0, seed);
    const auto grown = [&](const PolicyT& by) {
      detail::tested_policy_of<double, PolicyT> another(by);
      tree<> of(t.capacity());
      of.reset(root, limit);
      traced_chance chance(numbers);
      another.grow(of, drafter, chance, detail::any_start(round));
      return of;
    };
    const tree<> of_copy = grown(policy);
    tree<> of_loaded = of_copy;
    if constexpr (SavedPolicy<PolicyT>) of_loaded = grown(detail::reloaded(policy, unused));
    detail::tested_policy_of<double, PolicyT> tested(policy);
    traced_chance chance(numbers);
    tested.grow(t, drafter, chance, detail::any_start(round));
    const tree_view view = t;
    require_law(detail::equal(of_copy.view(), view), "a copy of the policy grows another tree.");
    require_law(detail::equal(of_loaded.view(), view),
                "a policy that has loaded what this one saved grows another tree.");
    require_law(view.token[0] == root, "the policy has changed the root's token.");
    if (!is_cut && sharpness == 0) most_draws = (std::max)(most_draws, view.n_draws);
    covered.drawn_depth = (std::max)(covered.drawn_depth, view.depth[detail::deepest_node(view)]);
    covered.n_picks += static_cast<std::int64_t>(chance.picks().size());
    covered.n_keys += chance.n_keys();
    tested.observe(view, detail::verdict_of(view, round / 60, random));
    policy = tested.policy();
  }
  require_law((most_draws > 0) == (policy.max_nodes() > 0), "the policy drafts at most ", most_draws,
              " tokens, but its max_nodes() is ", policy.max_nodes(), ".");
  covered.n_rounds = 180;
  covered.drawn_vocabulary = 300;
  return covered;
}

}  // namespace espalier::testing
