// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/tree_policy/log_prob.hpp"

namespace espalier {

struct delayed_options {
  std::int32_t paths = 2;   //!< K, independent paths
  std::int32_t trunk = 2;   //!< L1, drafted tokens before they part
  std::int32_t length = 4;  //!< L2, drafted tokens of each path after that
};

//! Draws a trunk of L1 tokens, then K independent paths of L2 tokens from its end. Paths that draw the same token at the same
//! node share it; the node keeps one slot for each path, in the order of the paths.
//!
//! Complexity  L1 + L2 draft passes, one a depth, with a row for each different node that paths stand on; no allocation
//! Law         the draws of a node are independent, and their number does not depend on what they are
//! Errors      option_error for paths outside 1 to 64, a trunk or length outside 0 to 64; numeric_error for a row of zeros
//! Source      Delayed tree expansion, section 5
class delayed {
 public:
  static constexpr regime sampling = regime::iid;

  explicit delayed(delayed_options options = {}) : options_(options) {
    require_option("paths", options.paths, 1, 64);
    require_option("trunk", options.trunk, 0, 64);
    require_option("length", options.length, 0, 64);
    ends_.resize(static_cast<std::size_t>(options.paths));
    asked_.resize(ends_.size());
  }

  std::int32_t max_nodes() const { return options_.trunk + options_.paths * options_.length; }

  template <class TreeT, StepDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT& chance) {
    ends_[0] = root_node;
    for (std::int32_t i = 0; i < options_.trunk; ++i)
      extend(tree, drafter, chance, 1);
    for (node_id& end : ends_)
      end = ends_[0];
    for (std::int32_t i = 0; i < options_.length; ++i)
      extend(tree, drafter, chance, ends_.size());
  }

  void observe(tree_view, verdict) const {}

 private:
  // One token more for each of the first n paths; all their nodes are asked about in one pass.
  template <class TreeT, class DrafterT, class ChanceT>
  void extend(TreeT& tree, DrafterT& drafter, ChanceT& chance, std::size_t n) {
    const auto left = static_cast<std::size_t>(tree.limit() - tree.view().n_draws);
    if (left < n) n = left;
    if (n == 0) return;
    std::size_t n_asked = 0;
    for (std::size_t path = 0; path < n; ++path) {
      if (row_of(ends_[path], n_asked) == n_asked) asked_[n_asked++] = ends_[path];
    }
    const auto rows = drafter.propose(tree, std::span<const node_id>(asked_).first(n_asked));
    for (std::size_t path = 0; path < n; ++path) {
      const auto row = rows.row(static_cast<std::int32_t>(row_of(ends_[path], n_asked)));
      const token_id token = chance.pick(row, {ends_[path], static_cast<std::int32_t>(path), purpose::draft});
      if (token < 0) raise<numeric_error>("the draft's row after node ", ends_[path], " has no probability above 0.");
      const double probability = static_cast<double>(row[static_cast<std::size_t>(token)]);
      ends_[path] = tree.draw(ends_[path], token, detail::log_prob_of(probability));
    }
  }

  // Where the node stands among those to be asked about; n_asked if nowhere.
  std::size_t row_of(node_id u, std::size_t n_asked) const {
    std::size_t i = 0;
    while (i < n_asked && asked_[i] != u)
      ++i;
    return i;
  }

  delayed_options options_;
  std::vector<node_id> ends_;   // [paths] where each path stands
  std::vector<node_id> asked_;  // [paths] these nodes, each once
};

}  // namespace espalier
