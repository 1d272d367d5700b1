// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"

namespace espalier {

namespace detail {

template <class DrafterT, std::size_t N>
concept JointOf = requires(DrafterT& drafter) {
  requires(DrafterT::size() == N);
  drafter.template get<N - 1>();
  drafter.template room<N - 1>();
};

template <class DrafterT, std::size_t Index>
using part_of = std::remove_reference_t<decltype(std::declval<DrafterT&>().template get<Index>())>;

template <class PoliciesT, class DrafterT, class ChanceT, std::size_t... Index>
constexpr bool each_grows(std::index_sequence<Index...>) {
  return (Grows<std::remove_reference_t<std::tuple_element_t<Index, PoliciesT>>, part_of<DrafterT, Index>, ChanceT> &&
          ...);
}

}  // namespace detail

//! Several deterministic trees in one: policy i grows over drafter i of a joint, and what they draft is merged.
//!
//! Nodes of the same path are one node. First come those of the first policy, in its order and with its probabilities, then what
//! each of the next adds to them, as far as the tree has room.
//!
//!     make_decoder(joint(autoregressive(draft, draft_kv), prompt_lookup()), cascade(dynatree(), chain()), greedy(), kv, target);
//!
//! Policies are kept by reference when given as lvalues, by value otherwise. Each observes the merged tree and its verdict: what
//! the next ones add may be accepted, too, and counts.
//!
//! Complexity  that of the policies; O(nodes * children) to merge; no allocation after construction
//! Law         TreePolicy's; a drafter that has no room is not asked, and the others go on
//! Errors      option_error for more than 16777216 nodes in all; those of the policies
template <class... PoliciesT>
class cascade {
  static_assert(((std::remove_reference_t<PoliciesT>::sampling == regime::deterministic) && ...),
                "a cascade merges deterministic trees only: draws from several drafters are draws from no row, and no "
                "verifier would be lossless for them");
  using policies_type = std::tuple<PoliciesT...>;
  static constexpr std::size_t n_policies = sizeof...(PoliciesT);
  static constexpr auto indices = std::make_index_sequence<n_policies>();

 public:
  static constexpr regime sampling = regime::deterministic;

  explicit cascade(PoliciesT&&... policies)
      : policies_(std::forward<PoliciesT>(policies)...), merged_(checked(max_nodes_of(policies_))) {
    for (std::vector<node_id>& was : was_)
      was.resize(static_cast<std::size_t>(merged_.capacity()) + 1);
    node_of_.resize(static_cast<std::size_t>(max_asked()) + 1);
  }

  std::int32_t max_nodes() const { return merged_.capacity(); }
  //! While one of them grows, the tree holds what that one asks for.
  std::int32_t max_asked() const {
    return std::apply(
        [&](const auto&... policy) {
          return (std::max)({max_nodes(), most_asked(policy)...});
        },
        policies_);
  }

  template <class TreeT, detail::JointOf<n_policies> DrafterT, class ChanceT>
  requires(detail::each_grows<policies_type, DrafterT, ChanceT>(indices)) void grow(TreeT& tree, DrafterT& drafters,
                                                                                    ChanceT& chance) {
    const token_id root = tree.view().token[root_node];
    const std::int32_t limit = tree.limit();
    merged_.reset(root, limit);
    const auto add_part = [&]<std::size_t Index>() {
      static_assert(
          !StepDrafter<detail::part_of<DrafterT, Index>> || RenumberingDrafter<detail::part_of<DrafterT, Index>>,
          "a cascade builds the tree anew: each of its step drafters must have renumber(was) to follow");
      std::fill(was_[Index].begin(), was_[Index].end(), no_node);
      was_[Index][root_node] = root_node;
      const auto room = drafters.template room<Index>();
      if (room == 0) return;
      auto& policy = std::get<Index>(policies_);
      tree.reset(root, (std::min)({limit, room, most_asked(policy)}));
      policy.grow(tree, drafters.template get<Index>(), chance);
      merge(tree, was_[Index]);
    };
    [&]<std::size_t... Index>(std::index_sequence<Index...>) {
      (add_part.template operator()<Index>(), ...);
    }
    (indices);
    tree.reset(root, limit);
    const tree_view merged = merged_;
    for (node_id u = 1; u < merged.n_nodes; ++u)
      tree.append(merged.parent[u], merged.token[u], merged.log_prob[u]);
    const auto tell_part = [&]<std::size_t Index>() {
      if constexpr (RenumberingDrafter<detail::part_of<DrafterT, Index>>)
        drafters.template get<Index>().renumber(
            std::span<const node_id>(was_[Index]).first(static_cast<std::size_t>(merged.n_nodes)));
    };
    [&]<std::size_t... Index>(std::index_sequence<Index...>) {
      (tell_part.template operator()<Index>(), ...);
    }
    (indices);
  }

  void observe(tree_view tree, verdict v) {
    std::apply([&](auto&... policy) { (policy.observe(tree, v), ...); }, policies_);
  }

  void reset() {
    const auto reset_one = [](auto& policy) {
      if constexpr (requires { policy.reset(); }) policy.reset();
    };
    std::apply([&](auto&... policy) { (reset_one(policy), ...); }, policies_);
  }

 private:
  static std::int64_t max_nodes_of(const policies_type& policies) {
    return std::apply([](const auto&... policy) { return (std::int64_t{policy.max_nodes()} + ...); }, policies);
  }

  static std::int32_t checked(std::int64_t nodes) {
    require_option("nodes of the cascade", nodes, std::int64_t{0}, std::int64_t{1} << 24);
    return static_cast<std::int32_t>(nodes);
  }

  void merge(tree_view part, std::vector<node_id>& was) {
    node_of_[root_node] = root_node;
    for (node_id u = 1; u < part.n_nodes; ++u) {
      const node_id parent = node_of_[static_cast<std::size_t>(part.parent[u])];
      node_id& node = node_of_[static_cast<std::size_t>(u)];
      node = no_node;
      if (parent == no_node) continue;
      node = merged_.view().find_child(parent, part.token[u]);
      if (node == no_node) node = merged_.append(parent, part.token[u], part.log_prob[u]);
      if (node != no_node) was[static_cast<std::size_t>(node)] = u;
    }
  }

  policies_type policies_;
  tree<> merged_;
  std::vector<node_id> was_[n_policies];  // [max_nodes + 1] merged node -> node of the part, or no_node
  std::vector<node_id> node_of_;          // [max_asked + 1] node of the part -> merged node, or no_node
};

template <class... PoliciesT>
cascade(PoliciesT&&...) -> cascade<PoliciesT...>;

}  // namespace espalier
