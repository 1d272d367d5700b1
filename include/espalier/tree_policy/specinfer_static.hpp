// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

#include "espalier/concepts/regime.hpp"
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

//! Options of specinfer_static. level_1 is the number of draws from the root, level_2 the number of draws from each
//! node of level 1, and so on; 0 ends the tree. The defaults are ours: 60 draws.
struct specinfer_static_options {
  std::int32_t budget = 64;  //!< drafted tokens a round at most
  std::int32_t level_1 = 4;
  std::int32_t level_2 = 2;
  std::int32_t level_3 = 2;
  std::int32_t level_4 = 1;
  std::int32_t level_5 = 1;
  std::int32_t level_6 = 0;
  std::int32_t level_7 = 0;
  std::int32_t level_8 = 0;

  static constexpr void describe(auto see) {
    using self = specinfer_static_options;
    see(option{"budget", &self::budget, "drafted tokens a round at most", 1, 1024});
    see(option{"level_1", &self::level_1, "draws from the root", 0, 64});
    see(option{"level_2", &self::level_2, "draws from each node of level 1; 0 ends the tree", 0, 64});
    see(option{"level_3", &self::level_3, "draws from each node of level 2; and so on", 0, 64});
    see(option{"level_4", &self::level_4, "draws from each node of level 3", 0, 64});
    see(option{"level_5", &self::level_5, "draws from each node of level 4", 0, 64});
    see(option{"level_6", &self::level_6, "draws from each node of level 5", 0, 64});
    see(option{"level_7", &self::level_7, "draws from each node of level 6", 0, 64});
    see(option{"level_8", &self::level_8, "draws from each node of level 7", 0, 64});
  }
};

//! Draws independently from every node, as often as the options say for its level. Draws that give the same token share
//! a node; from such a node no more is drawn than from others of its level. Draws are made level after level, in each
//! level in the order in which its nodes were made, until the budget is spent.
//!
//! Complexity  one draft pass a level, with a row for each different node; no allocation after construction
//! Law         the draws of a node are independent, and their number does not depend on the tokens that they give
//! Errors      option_error for options out of range; numeric_error for a row of the draft without a probability above
//!             0
//! Source      SpecInfer, expansion-based token trees
class specinfer_static {
 public:
  static constexpr regime sampling = regime::iid;

  explicit specinfer_static(specinfer_static_options options = {})
      : draws_{options.level_1, options.level_2, options.level_3, options.level_4,
               options.level_5, options.level_6, options.level_7, options.level_8} {
    require_options(options);
    std::int32_t level = 1;
    for (std::size_t d = 0; d < draws_.size() && level > 0 && max_nodes_ < options.budget; ++d) {
      level = (std::min)(level * draws_[d], options.budget - max_nodes_);
      max_nodes_ += level;
    }
    nodes_.resize(static_cast<std::size_t>(max_nodes_) + 1);
    std::iota(nodes_.begin(), nodes_.end(), root_node);
  }

  std::int32_t max_nodes() const { return max_nodes_; }
  //! Number of bytes that the policy takes of an arena at most.
  static constexpr std::size_t bytes(const static_capacity& c) {
    return arena::bytes_of<node_id>(static_cast<std::size_t>(c.nodes) + 1);
  }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    begin_ = root_node;
    level_ = 0;
    return wanted(tree);
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    const auto asked = wanted(tree);
    begin_ = tree.size();
    for (const node_id u : asked) {
      for (std::int32_t slot = 0; slot < draws_[level_] && tree.left(max_nodes_) > 0; ++slot)
        draw(tree, u, slot, rows.row(u), chance);
    }
    ++level_;
    return wanted(tree);
  }

  void observe(tree_view, verdict) const {}

 private:
  // The nodes of the level to ask about. Each gets at least one draw, so they are no more than the draws that are left.
  template <class TreeT>
  std::span<const node_id> wanted(const TreeT& tree) const {
    if (level_ == draws_.size() || draws_[level_] == 0) return {};
    const std::int32_t n = (std::min)(tree.size() - begin_, tree.left(max_nodes_));
    return std::span<const node_id>(nodes_).subspan(static_cast<std::size_t>(begin_), static_cast<std::size_t>(n));
  }

  template <class TreeT, class NumberT, class ChanceT>
  static void draw(TreeT& tree, node_id u, std::int32_t slot, std::span<const NumberT> row, ChanceT& chance) {
    const token_id token = chance.pick(row, {u, slot, purpose::draft});
    if (token < 0) raise<numeric_error>("the draft's row after node ", u, " has no probability above 0.");
    tree.draw(u, token, detail::log_prob_of(static_cast<wide_number>(row[static_cast<std::size_t>(token)])));
  }

  std::array<std::int32_t, 8> draws_;  // by level: draws from each of its nodes
  std::int32_t max_nodes_ = 0;
  std::int32_t begin_ = root_node;  // the first node of the level, which ends at the tree's last node
  std::size_t level_ = 0;
  detail::list<node_id> nodes_;  // 0, 1, ...: a level is a part of this list, since its nodes have consecutive numbers
};

}  // namespace espalier
