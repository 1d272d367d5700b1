// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/views.hpp"

namespace espalier {

//! What a verdict commits of a tree, for pictures.
class committed_path {
 public:
  committed_path(tree_view tree, verdict v)
      : on_path_(static_cast<std::size_t>(tree.n_nodes), char{0}), own_(tree.find_child(v.accepted, v.token)) {
    on_path_[static_cast<std::size_t>(v.accepted)] = 1;
    for (const node_id u : views::ancestors(tree, v.accepted))
      on_path_[static_cast<std::size_t>(u)] = 1;
  }

  //! The root and the accepted nodes.
  bool has(node_id u) const { return on_path_[static_cast<std::size_t>(u)] != 0; }

  //! The drafted node that bears the verdict's own token: there is one where a text stopped in the middle of a path.
  //! Otherwise no_node.
  node_id own() const { return own_; }

 private:
  std::vector<char> on_path_;
  node_id own_;
};

}  // namespace espalier
