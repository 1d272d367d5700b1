// SPDX-License-Identifier: BSL-1.0
// Tested by tests/verifier/approximate.cpp
#pragma once

#include <cstddef>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/verifier/naive_tree.hpp"
#include "espalier/verifier/walk/walk.hpp"

namespace espalier {

//! The options of deferral.
struct deferral_options {
  double lenience = 0.1;  //!< most by which the draft's highest probability may be below the target's

  static constexpr void describe(auto see) {
    see(option{"lenience", &deferral_options::lenience, "most that the draft is less sure than the target", -1.0, 1.0});
  }
};

//! A cascade of two models: where the draft is nearly as sure as the target, its first draw is accepted as it is;
//! elsewhere the draw is tested as naive_tree tests it, and the token is distributed as the target's. It is not
//! lossless: a decoder takes it as approximate<deferral> only. With lenience -1 it is naive_tree.
//!
//! Complexity  one pass over p and q at each node of the path for the highest probabilities, and naive_tree's passes
//! Errors      option_error for a lenience out of range; otherwise as naive_tree
//! Source      Narasimhan et al., Faster cascades via speculative decoding, the rule by the difference of the highest
//!             probabilities
class deferral {
 public:
  static constexpr regime approximate_for = regime::iid | regime::single_path;

  explicit deferral(deferral_options options = {}) : options_(require_options(options)) {}

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) const {
    return detail::walk_rows(tree, draft, target, chance, [&](node_id u, auto p, auto q) {
      if (!(highest(q) > highest(p) - static_cast<wide_number>(options_.lenience)))
        return detail::test_first_draw(tree, u, p, q, chance);
      const node_id child = *tree.draws(u).begin();
      detail::drawn_token(tree, child, q);
      return tree.token[child];
    });
  }

 private:
  template <class RowT>
  static wide_number highest(const RowT& row) {
    wide_number most = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const auto x = static_cast<wide_number>(row[i]);
      if (x > most) most = x;
    }
    return most;
  }

  deferral_options options_;
};

}  // namespace espalier
