// SPDX-License-Identifier: BSL-1.0
// Tested by tests/report/pictures.cpp
#pragma once

#include <cmath>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/report/committed_path.hpp"
#include "espalier/report/token_label.hpp"
#include "espalier/views.hpp"

namespace espalier {

namespace detail {

inline std::string dot_quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

}  // namespace detail

//! Writes a round's tree for Graphviz: `dot -Tsvg`. The accepted path is green, the target's own token purple. An edge
//! shows the draft's probability in percent; other nodes and edges are darker the more probable their path is. A token
//! that was drawn several times shows the number of draws.
//!
//! Pre         text_of(token) returns the bytes of a token
template <class TextT>
void write_dot(std::ostream& out, tree_view tree, verdict v, const TextT& text_of) {
  const committed_path path(tree, v);
  constexpr const char* accepted = "color=\"#1a7f4b\", penwidth=3";
  constexpr const char* own = "color=\"#8250df\", penwidth=3";
  const auto percent = [&](node_id u) {
    return std::to_string(std::lround(100.0 * std::exp(static_cast<double>(tree.log_prob[u]))));
  };
  const auto grey = [&](node_id u) {
    const double dark = 1.0 + static_cast<double>(tree.path_log_prob[u]) / 7.0;
    const auto level = std::to_string(static_cast<int>(75.0 - 55.0 * (dark > 0 ? dark : 0)));
    return "color=\"gray" + level + "\", fontcolor=\"gray" + level + "\"";
  };

  out << "digraph tree {\n"
         "  graph [rankdir=LR, nodesep=0.12, ranksep=0.4];\n"
         "  node [shape=box, style=rounded, fontname=\"monospace\", fontsize=12, height=0.3, margin=\"0.1,0.03\"];\n"
         "  edge [fontname=\"monospace\", fontsize=9, arrowhead=none];\n";
  for (const node_id u : views::nodes(tree)) {
    out << "  n" << u << " [label=" << detail::dot_quoted(node_label(tree, u, text_of(tree.token[u])).text) << ", ";
    if (u == path.own()) {
      out << own;
    } else {
      out << (path.has(u) ? std::string(accepted) : grey(u));
    }
    out << "];\n";
  }
  for (const node_id u : views::nodes(tree)) {
    for (const node_id child : views::children(tree, u)) {
      out << "  n" << u << " -> n" << child << " [label=\"" << percent(child) << "\", ";
      if (child == path.own()) {
        out << own;
      } else {
        out << (path.has(child) ? std::string(accepted) : grey(child));
      }
      out << "];\n";
    }
  }
  if (path.own() == no_node) {
    out << "  own [label=" << detail::dot_quoted(token_label(text_of(v.token)).text) << ", " << own << "];\n"
        << "  n" << v.accepted << " -> own [style=dashed, " << own << "];\n";
  }
  out << "}\n";
}

}  // namespace espalier
