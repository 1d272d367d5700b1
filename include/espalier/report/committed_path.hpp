// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/views.hpp"

namespace espalier {

//! Tells which nodes of a tree a verdict commits, for pictures.
class committed_path {
 public:
  committed_path(tree_view tree, verdict v)
      : on_path_(static_cast<std::size_t>(tree.n_nodes), char{0}), own_(tree.find_child(v.accepted, v.token)) {
    on_path_[static_cast<std::size_t>(v.accepted)] = 1;
    for (const node_id u : views::ancestors(tree, v.accepted))
      on_path_[static_cast<std::size_t>(u)] = 1;
  }

  //! True for the root and the accepted nodes.
  bool has(node_id u) const { return on_path_[static_cast<std::size_t>(u)] != 0; }

  //! Returns the child of the accepted node that has the verdict's own token; no_node if there is none. There is one if
  //! the text stopped on an accepted path: the verdict is then cut there, and its own token is the token of that child.
  node_id own() const { return own_; }

 private:
  std::vector<char> on_path_;
  node_id own_;
};

}  // namespace espalier
