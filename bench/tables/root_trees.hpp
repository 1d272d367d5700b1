// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/core/philox.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree.hpp"
#include "static_tree.hpp"

namespace bench {

//! All static trees at one root, drawn at once: a path of 16 tokens, and from each of its first 9 nodes three more
//! paths of 8 tokens. The trees overlap. Each is distributed as its own policy would draw it, and one target pass gives
//! the rows of all.
//!
//! Complexity  16 draft passes
class root_trees {
 public:
  static constexpr int deepest = most_trunk + most_length;
  static constexpr int most_nodes = deepest + (most_trunk + 1) * (most_paths - 1) * most_length;

  root_trees() : tree_(most_nodes) {}

  template <class DrafterT>
  void draw(DrafterT& drafter, espalier::token_id root, const espalier::philox_chance& chance) {
    tree_.reset(root);
    main_[0] = espalier::root_node;
    for (int depth = 0; depth < deepest; ++depth) {
      for (int path = 1; path < most_paths && depth <= most_trunk; ++path)
        side(depth, path, 0) = main_[at(depth)];
      asked_.assign(1, main_[at(depth)]);
      for_each_side(depth, [&](int trunk, int path) { ask(side(trunk, path, depth - trunk)); });
      drafter.propose(tree_, asked_);
      const auto rows = drafter.rows();
      const auto extend = [&](espalier::node_id u, int slot) {
        return tree_.draw(u, chance.pick(rows.row(u), {u, slot, espalier::purpose::draft}), 0.0F);
      };
      main_[at(depth + 1)] = extend(main_[at(depth)], 0);
      for_each_side(depth, [&](int trunk, int path) {
        const int step = depth - trunk;
        side(trunk, path, step + 1) = extend(side(trunk, path, step), trunk * most_paths + path);
      });
    }
  }

  const espalier::tree<>& all() const { return tree_; }

  //! The node after `step` tokens of path `path`, which leaves the main path after its first `trunk` tokens.
  espalier::node_id node(int trunk, int path, int step) const {
    return path == 0 ? main_[at(trunk + step)] : sides_[at(trunk)][at(path - 1)][at(step)];
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  espalier::node_id& side(int trunk, int path, int step) { return sides_[at(trunk)][at(path - 1)][at(step)]; }

  // Calls f(trunk, path) for the side paths that are extended from this depth.
  template <class FunctionT>
  static void for_each_side(int depth, const FunctionT& f) {
    for (int trunk = std::max(0, depth - most_length + 1); trunk <= std::min(depth, most_trunk); ++trunk) {
      for (int path = 1; path < most_paths; ++path)
        f(trunk, path);
    }
  }

  void ask(espalier::node_id u) {
    if (std::find(asked_.begin(), asked_.end(), u) == asked_.end()) asked_.push_back(u);
  }

  espalier::tree<> tree_;
  std::array<espalier::node_id, deepest + 1> main_{};
  std::array<std::array<std::array<espalier::node_id, most_length + 1>, most_paths - 1>, most_trunk + 1> sides_{};
  std::vector<espalier::node_id> asked_;
};

//! One static tree taken out of them, with the rows that belong to its nodes.
class tree_part {
 public:
  //! A target's rows by node, for verifiers.
  struct target_rows {
    static constexpr bool are_distributions = true;
    espalier::vocab_rows<float> rows;
    const espalier::node_id* origin;
    std::span<const float> row(espalier::node_id u) const { return rows.row(origin[u]); }
  };

  tree_part()
      : tree_(most_trunk + most_paths * most_length),
        origin_(static_cast<std::size_t>(tree_.capacity()) + 1),
        draft_row_(origin_.size()) {}

  //! Takes the tree whose root is token number `base` of the main path; the tree's own trunk begins there.
  void take(const root_trees& from, static_tree shape, int base = 0) {
    const espalier::tree_view all = from.all().view();
    origin_[0] = from.node(base, 0, 0);
    tree_.reset(all.token[origin_[0]]);
    draft_passes_.clear();
    std::array<espalier::node_id, most_paths> ends{};
    const auto extend = [&](int path, espalier::node_id to) {
      espalier::node_id& end = ends[static_cast<std::size_t>(path)];
      end = tree_.draw(end, all.token[to], 0.0F);
      origin_[static_cast<std::size_t>(end)] = to;
    };
    for (int i = 1; i <= shape.trunk; ++i) {
      draft_passes_.push_back(1);
      extend(0, from.node(base + i, 0, 0));
    }
    ends.fill(ends[0]);
    for (int step = 1; step <= shape.length; ++step) {
      int rows = 0;
      for (auto end = ends.begin(); end != ends.begin() + shape.paths; ++end)
        rows += std::find(ends.begin(), end, *end) == end ? 1 : 0;
      draft_passes_.push_back(rows);
      for (int path = 0; path < shape.paths; ++path)
        extend(path, from.node(base + shape.trunk, path, step));
    }
  }

  espalier::tree_view tree() const { return tree_; }
  //! The number of rows of each draft pass that the tree takes.
  const std::vector<int>& draft_passes() const { return draft_passes_; }

  //! Sets the target's rows. Shapes: rows of all trees, by node of root_trees::all()
  target_rows of_target(espalier::vocab_rows<float> rows) const { return {rows, origin_.data()}; }
  espalier::node_rows<float> of_draft(const espalier::node_rows<float>& rows) {
    for (int u = 0; u < tree_.size(); ++u)
      draft_row_[static_cast<std::size_t>(u)] = rows.row_of[origin_[static_cast<std::size_t>(u)]];
    return {rows.rows, draft_row_.data()};
  }

 private:
  espalier::tree<> tree_;
  std::vector<espalier::node_id> origin_;  // the node of each node in root_trees::all()
  std::vector<std::int32_t> draft_row_;
  std::vector<int> draft_passes_;
};

}  // namespace bench
