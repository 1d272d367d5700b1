// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/selector/delayed_action.hpp"

namespace nde {

//! The trees of all actions at one root, each drawn `samples` times. A sample is a path of 16 tokens and, from each of
//! its first 9 nodes, three more paths of 8 tokens. The trees of a sample overlap, each is distributed as its own
//! policy draws it, and one target pass gives the rows of all samples.
//!
//! Complexity  16 draft passes
class root_paths {
 public:
  static constexpr int most_paths = espalier::delayed_action::most_paths;
  static constexpr int most_trunk = espalier::delayed_action::most_trunk;
  static constexpr int most_length = espalier::delayed_action::most_length;
  static constexpr int deepest = most_trunk + most_length;

 private:
  template <std::size_t Length>
  struct run {
    std::array<espalier::node_id, Length> node{};
    std::array<espalier::token_id, Length> token{};
  };

  struct sample_paths {
    run<deepest> main;
    std::array<std::array<run<most_length>, most_paths - 1>, most_trunk + 1> sides;

    auto& side(int trunk, int path) { return sides[at(trunk)][at(path - 1)]; }
    const auto& side(int trunk, int path) const { return sides[at(trunk)][at(path - 1)]; }
  };

 public:
  //! Nodes of one sample at most, without the root; the last token of a path needs no row, and so no node.
  static constexpr int most_nodes = deepest - 1 + (most_trunk + 1) * (most_paths - 1) * (most_length - 1);

  explicit root_paths(int samples)
      : samples_(static_cast<std::size_t>(samples)), tree_(samples * most_nodes), is_asked_(at(tree_.capacity()) + 1) {}

  int samples() const { return static_cast<int>(samples_.size()); }

  template <class DrafterT, espalier::Chance ChanceT>
  void draw(DrafterT& drafter, espalier::token_id root, const ChanceT& chance) {
    tree_.reset(root);
    for (sample_paths& s : samples_)
      s.main.node[0] = espalier::root_node;
    for (int depth = 0; depth < deepest; ++depth) {
      asked_.clear();
      std::fill(is_asked_.begin(), is_asked_.end(), char{0});
      for (sample_paths& s : samples_) {
        for (int path = 1; path < most_paths && depth <= most_trunk; ++path)
          s.side(depth, path).node[0] = s.main.node[at(depth)];
        ask(s.main.node[at(depth)]);
        for_each_side(depth, [&](int trunk, int path) { ask(s.side(trunk, path).node[at(depth - trunk)]); });
      }
      drafter.propose(tree_, asked_);
      const auto rows = drafter.rows();
      int first_slot = 0;
      for (sample_paths& s : samples_) {
        const auto extend = [&](auto& path, int step, int slot) {
          const espalier::node_id u = path.node[at(step)];
          const auto row = rows.row(u);
          const espalier::token_id token = chance.pick(row, {u, first_slot + slot, espalier::purpose::draft});
          if (token < 0) {
            espalier::raise<espalier::numeric_error>("the draft's row after node ", u,
                                                     " of the trees has no probability above 0.");
          }
          path.token[at(step)] = token;
          if (at(step) + 1 < path.node.size()) path.node[at(step) + 1] = tree_.draw(u, token, 0.0F);
        };
        extend(s.main, depth, 0);
        for_each_side(
            depth, [&](int trunk, int path) { extend(s.side(trunk, path), depth - trunk, trunk * most_paths + path); });
        first_slot += (most_trunk + 1) * most_paths;
      }
    }
  }

  //! The nodes after which a token was drawn.
  const espalier::tree<>& tree() const { return tree_; }

  //! The node after `step` tokens of a path that leaves the sample's main path after its first `trunk` tokens; path 0
  //! continues along the main path.
  //!
  //! Pre         step < 8
  espalier::node_id node(int sample, int trunk, int path, int step) const {
    const auto& s = samples_[at(sample)];
    return path == 0 ? s.main.node[at(trunk + step)] : s.side(trunk, path).node[at(step)];
  }

  //! The token that was drawn after that node.
  espalier::token_id token(int sample, int trunk, int path, int step) const {
    const auto& s = samples_[at(sample)];
    return path == 0 ? s.main.token[at(trunk + step)] : s.side(trunk, path).token[at(step)];
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  // Calls f for the paths beside the main one that are extended at this depth.
  template <class FunctionT>
  static void for_each_side(int depth, const FunctionT& f) {
    for (int trunk = std::max(0, depth - most_length + 1); trunk <= std::min(depth, most_trunk); ++trunk) {
      for (int path = 1; path < most_paths; ++path)
        f(trunk, path);
    }
  }

  void ask(espalier::node_id u) {
    if (std::exchange(is_asked_[at(u)], char{1}) != 0) return;
    asked_.push_back(u);
  }

  std::vector<sample_paths> samples_;
  espalier::tree<> tree_;
  std::vector<char> is_asked_;  // [nodes]
  std::vector<espalier::node_id> asked_;
};

}  // namespace nde
