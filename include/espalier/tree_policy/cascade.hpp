// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/round_start.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/tree_limit.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"

namespace espalier {

//! Merges the trees of several deterministic policies into one. Policy i asks drafter i of a joint.
//!
//! Nodes that have the same tokens on their paths become one node. The first policy's nodes come first, in its order
//! and with its probabilities; then each of the next policies adds its own, as far as the tree has room.
//!
//!     make_decoder(joint(autoregressive(draft, draft_kv), prompt_lookup()), cascade(dynatree(), chain()), greedy(),
//!     kv, target);
//!
//! Policies are kept by value. Each policy observes the merged tree and the verdict on it, so accepted nodes that
//! another policy drafted count for it, too.
//!
//! Complexity  as the policies, and O(nodes * children) to merge; no allocation after construction
//! Law         as for every TreePolicy; a drafter that can draft no more tokens is not asked, and the others are. Its
//!             policy begins the round as it would alone: with a tree that has no room
//! Errors      option_error for more than 16777216 nodes in all; the policies' errors
template <class... PoliciesT>
class cascade {
  static_assert(((PoliciesT::sampling == regime::deterministic) && ...),
                "a cascade merges deterministic trees only: draws from several drafters are draws from no row, and no "
                "verifier would be lossless for them");
  using policies_type = std::tuple<PoliciesT...>;
  static constexpr std::size_t n_policies = sizeof...(PoliciesT);
  template <std::size_t Index>
  using policy_type = std::tuple_element_t<Index, policies_type>;

 public:
  static constexpr regime sampling = regime::deterministic;

  explicit cascade(PoliciesT... policies)
      : policies_(std::move(policies)...), merged_(checked(max_nodes_of(policies_))) {
    for (std::vector<node_id>& was : was_)
      was.resize(static_cast<std::size_t>(merged_.capacity()) + 1);
    node_of_.resize(static_cast<std::size_t>(max_asked()) + 1);
  }

  std::int32_t max_nodes() const { return merged_.capacity(); }
  //! The greatest number of nodes, the root not counted, that the tree has while it grows: max_nodes(), or the number
  //! that one of the policies needs, if that is more.
  std::int32_t max_asked() const {
    return std::apply(
        [&](const auto&... policy) {
          return (std::max)({max_nodes(), most_asked(policy)...});
        },
        policies_);
  }

  std::tuple<const PoliciesT&...> parts() const {
    return std::apply([](const auto&... policy) { return std::tie(policy...); }, policies_);
  }

  //! Sets how many tokens each drafter may still draft.
  void limit_parts(std::span<const std::int32_t> rooms) { std::copy_n(rooms.begin(), n_policies, rooms_); }

  //! Number of the drafter that is asked about the wanted nodes.
  std::size_t part() const { return part_; }

  //! For each node of the merged tree, the number that it had in the tree about which drafter `part` was asked; no_node
  //! if it was not in that tree.
  std::span<const node_id> was(std::size_t part) const {
    return std::span(was_[part]).first(static_cast<std::size_t>(merged_.size()));
  }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    limit_ = tree.limit();
    merged_.reset(tree.view().token[root_node], limit_);
    for (std::vector<node_id>& was : was_) {
      std::fill(was.begin(), was.end(), no_node);
      was[root_node] = root_node;
    }
    return begin_from(tree, 0);
  }

  template <std::size_t Index, class TreeT, class AnswerT, class ChanceT>
  requires(Index < n_policies) &&
      detail::TakesAnswer<policy_type<Index>, AnswerT, ChanceT> std::span<const node_id> take(TreeT& tree,
                                                                                              const AnswerT& answer,
                                                                                              ChanceT& chance) {
    auto& policy = std::get<Index>(policies_);
    const std::span<const node_id> wanted = policy.take(tree, answer, chance);
    if (!wanted.empty()) return wanted;
    merge(tree, policy, was_[Index]);
    return begin_from(tree, Index + 1);
  }

  //! Returns why the tree has no more nodes: the reason of the first policy whose reason is not tree_limit::policy.
  //! Policies whose drafters have no room are left out.
  tree_limit limited_by() const {
    tree_limit found = tree_limit::policy;
    const auto ask = [&](std::size_t part, const auto& policy) {
      if constexpr (requires { policy.limited_by(); }) {
        if (found == tree_limit::policy && rooms_[part] > 0) found = policy.limited_by();
      }
    };
    std::apply(
        [&](const auto&... policy) {
          std::size_t part = 0;
          (ask(part++, policy), ...);
        },
        policies_);
    return found;
  }

  void observe(tree_view tree, verdict v) {
    std::apply([&](auto&... policy) { (policy.observe(tree, v), ...); }, policies_);
  }

  void open(const round_start& start) {
    const auto open_one = [&]<class PolicyT>(PolicyT& policy) {
      if constexpr (OpeningPolicy<PolicyT>) policy.open(start);
    };
    std::apply([&](auto&... policy) { (open_one(policy), ...); }, policies_);
  }

  void reset() {
    const auto reset_one = []<class PolicyT>(PolicyT& policy) {
      if constexpr (ResettingPolicy<PolicyT>) policy.reset();
    };
    std::apply([&](auto&... policy) { (reset_one(policy), ...); }, policies_);
  }

  template <class ArchiveT>
  requires(detail::LosesNothing<PoliciesT>&&...) void serialize(ArchiveT& archive) {
    const auto serialize_one = [&]<class PolicyT>(PolicyT& policy) {
      if constexpr (SavedPolicy<PolicyT>) policy.serialize(archive);
    };
    std::apply([&](auto&... policy) { (serialize_one(policy), ...); }, policies_);
  }

 private:
  static std::int64_t max_nodes_of(const policies_type& policies) {
    return std::apply([](const auto&... policy) { return (std::int64_t{policy.max_nodes()} + ...); }, policies);
  }

  static std::int32_t checked(std::int64_t nodes) {
    require_option("nodes of the cascade", nodes, std::int64_t{0}, std::int64_t{1} << 24);
    return static_cast<std::int32_t>(nodes);
  }

  // Begins the policies from number `first` on, until one wants an answer, and returns the nodes that it asks about. If
  // none wants one, makes `tree` a copy of the merged tree and returns no nodes. Policies whose trees have no room
  // begin, too, since they observe the round, but are given no answer.
  template <class TreeT>
  std::span<const node_id> begin_from(TreeT& tree, std::size_t first) {
    const token_id root = merged_.view().token[root_node];
    std::span<const node_id> wanted;
    const auto begin_one = [&](std::size_t part, auto& policy) {
      if (part < first || !wanted.empty()) return;
      const std::int32_t room = (std::min)(limit_, rooms_[part]);
      tree.reset(root, (std::min)(room, most_asked(policy)));
      const std::span<const node_id> asked = policy.begin(tree);
      if (room <= 0) return;
      part_ = part;
      wanted = asked;
    };
    std::apply(
        [&](auto&... policy) {
          std::size_t part = 0;
          (begin_one(part++, policy), ...);
        },
        policies_);
    if (!wanted.empty()) return wanted;
    tree.reset(root, limit_);
    const tree_view merged = merged_;
    for (node_id u = 1; u < merged.n_nodes; ++u)
      tree.append(merged.parent[u], merged.token[u], merged.log_prob[u]);
    return {};
  }

  // Adds the nodes that a policy has drafted to the merged tree. Sets was[u], for each such node u of the merged tree,
  // to the node's number in the tree about which the policy's drafter was asked.
  template <class PolicyT>
  void merge(tree_view drafted, const PolicyT& policy, std::vector<node_id>& was) {
    node_of_[root_node] = root_node;
    for (node_id u = 1; u < drafted.n_nodes; ++u) {
      const node_id parent = node_of_[static_cast<std::size_t>(drafted.parent[u])];
      node_id& node = node_of_[static_cast<std::size_t>(u)];
      node = no_node;
      if (parent == no_node) continue;
      node = merged_.view().find_child(parent, drafted.token[u]);
      if (node == no_node) node = merged_.append(parent, drafted.token[u], drafted.log_prob[u]);
      if (node == no_node) continue;
      was[static_cast<std::size_t>(node)] = u;
      if constexpr (RebuildingPolicy<PolicyT>) {
        if (!policy.was().empty()) was[static_cast<std::size_t>(node)] = policy.was()[static_cast<std::size_t>(u)];
      }
    }
  }

  policies_type policies_;
  tree<> merged_;
  std::vector<node_id> was_[n_policies];  // [max_nodes + 1] merged node -> its number for the drafter, or no_node
  std::int32_t limit_ = 0;
  std::int32_t rooms_[n_policies] = {};
  std::size_t part_ = 0;
  std::vector<node_id> node_of_;  // [max_asked + 1] node of the policy -> merged node, or no_node
};

}  // namespace espalier
