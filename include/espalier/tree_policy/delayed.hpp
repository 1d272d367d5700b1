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

namespace detail {

// Grows delayed trees of up to as many paths as were reserved.
class delayed_growth {
 public:
  void reserve(std::int32_t most_paths) {
    ends_.resize(static_cast<std::size_t>(most_paths));
    asked_.resize(ends_.size());
  }

  // `of_root` is the root's row where it was asked for already, else empty.
  template <class TreeT, class DrafterT, class ChanceT, class RowT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT& chance, const delayed_options& shape, RowT of_root) {
    const auto paths = static_cast<std::size_t>(shape.paths);
    ends_[0] = root_node;
    for (std::int32_t i = 0; i < shape.trunk; ++i)
      extend(tree, drafter, chance, 1, of_root);
    for (std::size_t i = 1; i < paths; ++i)
      ends_[i] = ends_[0];
    for (std::int32_t i = 0; i < shape.length; ++i)
      extend(tree, drafter, chance, paths, of_root);
  }

 private:
  // One token more for each of the first n paths; all their nodes are asked about in one pass.
  template <class TreeT, class DrafterT, class ChanceT, class RowT>
  void extend(TreeT& tree, DrafterT& drafter, ChanceT& chance, std::size_t n, RowT of_root) {
    const auto left = static_cast<std::size_t>(tree.limit() - tree.view().n_draws);
    if (left < n) n = left;
    if (n == 0) return;
    if (ends_[0] == root_node && !of_root.empty()) {  // all stand there
      for (std::size_t path = 0; path < n; ++path)
        draw(tree, chance, path, of_root);
      return;
    }
    std::size_t n_asked = 0;
    for (std::size_t path = 0; path < n; ++path) {
      if (row_of(ends_[path], n_asked) == n_asked) asked_[n_asked++] = ends_[path];
    }
    const auto rows = drafter.propose(tree, std::span<const node_id>(asked_).first(n_asked));
    for (std::size_t path = 0; path < n; ++path)
      draw(tree, chance, path, rows.row(static_cast<std::int32_t>(row_of(ends_[path], n_asked))));
  }

  template <class TreeT, class ChanceT, class RowT>
  void draw(TreeT& tree, ChanceT& chance, std::size_t path, RowT row) {
    node_id& end = ends_[path];
    const token_id token = chance.pick(row, {end, static_cast<std::int32_t>(path), purpose::draft});
    if (token < 0) raise<numeric_error>("the draft's row after node ", end, " has no probability above 0.");
    end = tree.draw(end, token, log_prob_of(static_cast<double>(row[static_cast<std::size_t>(token)])));
  }

  // Where the node stands among those to be asked about; n_asked if nowhere.
  std::size_t row_of(node_id u, std::size_t n_asked) const {
    std::size_t i = 0;
    while (i < n_asked && asked_[i] != u)
      ++i;
    return i;
  }

  std::vector<node_id> ends_;   // [paths] where each path stands
  std::vector<node_id> asked_;  // [paths] these nodes, each once
};

}  // namespace detail

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
    growth_.reserve(options.paths);
  }

  std::int32_t max_nodes() const { return options_.trunk + options_.paths * options_.length; }

  template <class TreeT, StepDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT& chance) {
    growth_.grow(tree, drafter, chance, options_, decltype(drafter.rows().row(root_node)){});
  }

  void observe(tree_view, verdict) const {}

 private:
  delayed_options options_;
  detail::delayed_growth growth_;
};

}  // namespace espalier
