// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"

namespace espalier {

//! Drafts nothing and commits one token a round: the baseline for all other policies.
struct plain {
  static constexpr regime sampling = regime::any;

  std::int32_t max_nodes() const { return 0; }

  template <class TreeT>
  std::span<const node_id> begin(TreeT&) const {
    return {};
  }
  template <class TreeT, class AnswerT, class ChanceT>
  std::span<const node_id> take(TreeT&, const AnswerT&, ChanceT&) const {
    return {};
  }

  void observe(tree_view, verdict) const {}
};

}  // namespace espalier
