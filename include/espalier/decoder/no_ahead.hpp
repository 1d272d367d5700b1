// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/ahead.cpp
#pragma once

#include <type_traits>

#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/decoder/check_parts.hpp"

namespace espalier::detail {

// Takes the place of drafting_ahead for drafters that do not draft ahead: each round drafts when it begins.
struct no_ahead {
  no_ahead(const auto&...) {}

  void start(const auto&...) {}
  auto rows(auto& drafter) { return draft_rows(drafter); }
  double commit(auto& drafter, tree_view tree, verdict v, bool&) {
    drafter.commit(tree, v);
    return 0;
  }
  bool take(const auto&...) { return false; }
  void give_up() {}
};

// Says as `type` what drafts ahead for a drafter: the drafter's own drafting_type, if it has one and only tokens go
// from a round to the next tree (Can); else no_ahead.
template <class DrafterT, class PolicyT, bool Can>
struct ahead_of : std::type_identity<no_ahead> {};
template <class DrafterT, class PolicyT>
requires requires {
  typename DrafterT::template drafting_type<PolicyT>;
}
struct ahead_of<DrafterT, PolicyT, true> : std::type_identity<typename DrafterT::template drafting_type<PolicyT>> {};

}  // namespace espalier::detail
