// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/sampling/log_prob.hpp"

namespace espalier {

struct delayed_options {
  std::int32_t paths = 2;   //!< K, independent paths
  std::int32_t trunk = 2;   //!< L1, drafted tokens before the paths part
  std::int32_t length = 4;  //!< L2, drafted tokens of each path after that

  static constexpr void describe(auto see) {
    see(option{"paths", &delayed_options::paths, "independent paths", 1, 64});
    see(option{"trunk", &delayed_options::trunk, "drafted tokens before they part", 0, 64});
    see(option{"length", &delayed_options::length, "drafted tokens of each after that", 0, 64});
  }

  //! Number of drafted tokens at most.
  ESPALIER_HOST_DEVICE std::int32_t max_nodes() const { return trunk + paths * length; }
  //! Number of paths that get one more token when the longest path has `level` tokens.
  ESPALIER_HOST_DEVICE std::int32_t paths_at(std::int32_t level) const {
    return level >= trunk + length ? 0 : level < trunk ? 1 : paths;
  }
};

namespace detail {

// Grows the trees of `delayed`, with at most as many paths as reserve() has made room for.
class delayed_growth {
 public:
  void reserve(std::int32_t most_paths) {
    ends_.resize(static_cast<std::size_t>(most_paths));
    wanted_.resize(ends_.size());
  }

  // Begins a tree with all paths at the root.
  template <class TreeT>
  std::span<const node_id> begin(const TreeT& tree, const delayed_options& shape) {
    shape_ = shape;
    level_ = 0;
    ends_[0] = root_node;
    return wanted(tree);
  }

  // Sets another shape, before any token is drawn.
  void reshape(const delayed_options& shape) { shape_ = shape; }

  // Draws one more token for each path (in the trunk, for the one path), as far as the tree has room.
  template <class TreeT, class RowsT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const RowsT& rows, ChanceT& chance) {
    const std::size_t n = n_paths(tree);
    for (std::size_t path = 0; path < n; ++path)
      draw(tree, chance, path, rows.row(ends_[path]));
    ++level_;
    return wanted(tree);
  }

 private:
  // Number of paths that get another token: one in the trunk, then all paths, but no more than there is room for.
  // At the end of the trunk, sets the ends of all paths to its last node.
  template <class TreeT>
  std::size_t n_paths(const TreeT& tree) {
    if (level_ == shape_.trunk) std::fill_n(ends_.begin(), shape_.paths_at(level_), ends_[0]);
    return static_cast<std::size_t>((std::min)(tree.left(), shape_.paths_at(level_)));
  }

  // The nodes at which the paths that get another token end, each once.
  template <class TreeT>
  std::span<const node_id> wanted(const TreeT& tree) {
    const std::size_t n = n_paths(tree);
    std::size_t n_wanted = 0;
    for (std::size_t path = 0; path < n; ++path) {
      const auto end = wanted_.begin() + static_cast<std::ptrdiff_t>(n_wanted);
      if (std::find(wanted_.begin(), end, ends_[path]) == end) wanted_[n_wanted++] = ends_[path];
    }
    return std::span<const node_id>(wanted_).first(n_wanted);
  }

  template <class TreeT, class ChanceT, class RowT>
  void draw(TreeT& tree, ChanceT& chance, std::size_t path, RowT row) {
    node_id& end = ends_[path];
    const token_id token = chance.pick(row, {end, static_cast<std::int32_t>(path), purpose::draft});
    if (token < 0) raise<numeric_error>("the draft's row after node ", end, " has no probability above 0.");
    end = tree.draw(end, token, log_prob_of(static_cast<wide_number>(row[static_cast<std::size_t>(token)])));
  }

  delayed_options shape_;
  std::int32_t level_ = 0;        // number of tokens of the longest path
  detail::list<node_id> ends_;    // [paths] the node at which each path ends
  detail::list<node_id> wanted_;  // [paths]
};

}  // namespace detail

//! Draws a trunk of L1 tokens, then K independent paths of L2 tokens from its end. Paths that draw the same token at
//! the same node share its child; the node keeps one draw for each path, in the order of the paths.
//!
//! Complexity  at most L1 + L2 draft passes, one for each depth, with a row for each different node at which paths end;
//!             no allocation after construction
//! Law         the draws of a node are independent, and their number does not depend on the tokens that they give
//! Errors      option_error for options out of range; numeric_error for a row of the draft without a probability above
//!             0
//! Source      Delayed tree expansion, section 5
class delayed {
 public:
  static constexpr regime sampling = regime::iid;

  explicit delayed(delayed_options options = {}) : options_(require_options(options)) {
    growth_.reserve(options.length > 0 ? options.paths : 1);
  }

  std::int32_t max_nodes() const { return options_.max_nodes(); }
  //! Number of bytes that the policy takes of an arena at most.
  static constexpr std::size_t bytes(const static_capacity& c) {
    return 2 * arena::bytes_of<node_id>(static_cast<std::size_t>((std::max)(c.nodes, std::int32_t{1})));
  }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    return growth_.begin(tree, options_);
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    return growth_.take(tree, rows, chance);
  }

  void observe(tree_view, verdict) const {}

 private:
  delayed_options options_;
  detail::delayed_growth growth_;
};

}  // namespace espalier
