// SPDX-License-Identifier: BSL-1.0
// Tested by tests/verifier/approximate.cpp
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/verifier/walk/walk.hpp"

namespace espalier {

//! The options of typical_acceptance.
struct typical_acceptance_options {
  double most = 0.09;    //!< highest threshold of the probability, which holds where the target is sure
  double of_flat = 0.3;  //!< factor of exp(-entropy), the threshold where the target is less sure

  static constexpr void describe(auto see) {
    see(option{"most", &typical_acceptance_options::most, "highest threshold of the probability", 0.0, 1.0});
    see(option{"of_flat", &typical_acceptance_options::of_flat, "factor of exp(-entropy) in the threshold", 0.0, 1.0});
  }

  //! The least probability that a token needs: min(most, of_flat * exp(-entropy)).
  template <class RowT>
  wide_number threshold(const RowT& p) const {
    const wide_number entropy = detail::sum_of(p.size(), [&](std::size_t i) {
      const auto x = static_cast<wide_number>(p[i]);
      return x > 0 ? -x * std::log(x) : wide_number(0);
    });
    return (std::min)(static_cast<wide_number>(most), static_cast<wide_number>(of_flat) * std::exp(-entropy));
  }
};

//! The options of relaxed_acceptance.
struct relaxed_acceptance_options {
  std::int32_t best = 5;  //!< number of the target's most probable tokens that can be accepted
  double below = 0.6;     //!< most by which the probability of such a token is below the highest

  static constexpr std::int32_t max_best = 16;

  static constexpr void describe(auto see) {
    see(option{"best", &relaxed_acceptance_options::best, "most probable tokens that can be accepted", 1, max_best});
    see(option{"below", &relaxed_acceptance_options::below, "most below the highest probability", 0.0, 1.0});
  }

  //! The least probability that a token needs.
  template <class RowT>
  wide_number threshold(const RowT& p) const {
    std::array<wide_number, max_best> highest{};  // in falling order
    for (std::size_t i = 0; i < p.size(); ++i) {
      auto x = static_cast<wide_number>(p[i]);
      for (std::size_t place = 0; place < static_cast<std::size_t>(best); ++place) {
        if (x > highest[place]) std::swap(x, highest[place]);
      }
    }
    return (std::max)(highest[static_cast<std::size_t>(best) - 1], highest[0] - static_cast<wide_number>(below));
  }
};

//! Accepts a drafted token, if the target's probability of it is above 0 and at least a threshold, which the options
//! compute from the target's row. The deepest node whose whole path is accepted wins, the first of equals; the token
//! after it is drawn from the target. It is not lossless: a decoder takes it as approximate<..> only.
//!
//! Complexity  one pass over p for the threshold of each accepted inner node. No allocation after reserve()
//! Errors      option_error for options out of range; numeric_error for rows that are no distributions; input_error for
//!             a token outside the vocabulary
//! Source      Cai et al., Medusa, section 2.3.1 (typical acceptance); TensorRT-LLM's relaxed acceptance
template <class OptionsT>
class threshold_acceptance {
 public:
  static constexpr regime approximate_for = regime::any;
  static constexpr bool target_alone = true;  //!< true: no row of the draft is read

  explicit threshold_acceptance(OptionsT options = {}) : options_(require_options(options)) {}

  void reserve(std::int32_t max_nodes, std::int32_t) { thresholds_.resize(static_cast<std::size_t>(max_nodes) + 1); }

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT&, TargetRowsT& target, ChanceT& chance) {
    if (thresholds_.size() < static_cast<std::size_t>(tree.n_nodes))
      thresholds_.resize(static_cast<std::size_t>(tree.n_nodes));
    node_id deepest = root_node;
    threshold_of(root_node) = threshold(tree, target, root_node);
    for (node_id u = 1; u < tree.n_nodes; ++u) {
      const node_id parent = tree.parent[u];
      threshold_of(u) = refused;
      if (threshold_of(parent) == refused) continue;
      const auto p = detail::known_row(target, parent);
      const auto probability = static_cast<wide_number>(p[detail::vocab_token(tree, u, p)]);
      if (!(probability > 0 && probability >= threshold_of(parent))) continue;
      threshold_of(u) = threshold(tree, target, u);
      if (tree.depth[u] > tree.depth[deepest]) deepest = u;
    }
    return {deepest, detail::pick_token(tree, deepest, detail::target_row(target, deepest), chance)};
  }

 private:
  static constexpr wide_number refused = -1;

  wide_number& threshold_of(node_id u) { return thresholds_[static_cast<std::size_t>(u)]; }

  // No token is compared with the threshold of a leaf.
  template <class TargetRowsT>
  wide_number threshold(tree_view tree, TargetRowsT& target, node_id u) const {
    return tree.is_leaf(u) ? 0 : options_.threshold(detail::target_row(target, u));
  }

  OptionsT options_;
  detail::list<wide_number> thresholds_;  // [nodes] refused for a node that is not accepted
};

//! Accepts the tokens that the target might typically write: with at least min(most, of_flat * exp(-entropy)).
using typical_acceptance = threshold_acceptance<typical_acceptance_options>;
//! Accepts the target's best tokens, if they are not too far below the very best one.
using relaxed_acceptance = threshold_acceptance<relaxed_acceptance_options>;

}  // namespace espalier
