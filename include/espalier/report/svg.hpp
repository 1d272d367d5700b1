// SPDX-License-Identifier: BSL-1.0
// Tested by tests/report/pictures.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/report/committed_path.hpp"
#include "espalier/report/token_label.hpp"
#include "espalier/report/xml_escaped.hpp"
#include "espalier/views.hpp"

namespace espalier {

//! Places the nodes of a tree on a grid: a column for each depth, the first child of a node in the row of its parent,
//! every other child's subtree below, as far up as it fits. Lines from parents to children then never cross.
//!
//! Complexity  O(n_nodes * depth)
//! Law         no two nodes share a place; within a column, rows ascend in the order of a walk that visits children in
//!             turn
class tree_layout {
 public:
  //! Lays out a tree. If extra_parent is a node, it gets one more child after its own children; the further child has
  //! the number n_nodes.
  explicit tree_layout(tree_view tree, node_id extra_parent = no_node)
      : tree_(tree), extra_parent_(extra_parent), rows_(static_cast<std::size_t>(tree.n_nodes) + 1, 0) {
    place(root_node, 0);
  }

  std::int32_t row(node_id u) const { return rows_[static_cast<std::size_t>(u)]; }
  std::int32_t column(node_id u) const { return u == tree_.n_nodes ? tree_.depth[extra_parent_] + 1 : tree_.depth[u]; }
  std::int32_t n_rows() const { return *std::max_element(free_.begin(), free_.end()); }
  std::int32_t n_columns() const { return static_cast<std::int32_t>(free_.size()); }

 private:
  // Places a node and its descendants: the node in the first free row of its column from row `least` on, or lower, in
  // the row of its first child, if that had to go lower. Returns the node's row.
  std::int32_t place(node_id u, std::int32_t least) {
    const auto column = static_cast<std::size_t>(this->column(u));
    if (column == free_.size()) free_.push_back(0);
    std::int32_t row = (std::max)(least, free_[column]);
    bool first = true;
    const auto place_child = [&](node_id child) {
      const std::int32_t child_row = place(child, row);
      if (first) row = child_row;
      first = false;
    };
    if (u != tree_.n_nodes) {
      for (const node_id child : views::children(tree_, u))
        place_child(child);
      if (u == extra_parent_) place_child(tree_.n_nodes);
    }
    rows_[static_cast<std::size_t>(u)] = row;
    free_[column] = row + 1;
    return row;
  }

  tree_view tree_;
  node_id extra_parent_;
  std::vector<std::int32_t> rows_;  // [n_nodes + 1]
  std::vector<std::int32_t> free_;  // the first free row of each column
};

struct svg_options {
  std::string title{};  //!< shown above the picture
};

namespace detail {

// Draws one tree. Lengths are in pixels.
class svg_tree {
 public:
  template <class TextT>
  svg_tree(tree_view tree, verdict v, const TextT& text_of, const svg_options& options)
      : tree_(tree),
        accepted_(v.accepted),
        path_(tree, v),
        layout_(tree, path_.own() == no_node ? v.accepted : no_node),
        title_(options.title) {
    for (const node_id u : views::nodes(tree))
      labels_.push_back(node_label(tree, u, text_of(tree.token[u])));
    if (path_.own() == no_node) labels_.emplace_back(text_of(v.token));
    place_columns();
  }

  void write(std::ostream& out) {
    const int top = title_.empty() ? margin : margin + 30;
    const int legend = top + layout_.n_rows() * row_height + 14;
    const int height = legend + 34 + margin / 2;
    const int width = (std::max)(static_cast<int>(right_) + margin, 660);
    out << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << width << "\" height=\"" << height
        << "\" viewBox=\"0 0 " << width << ' ' << height << "\" role=\"img\" aria-label=\""
        << xml_escaped(title_.empty() ? summary() : title_ + ": " + summary()) << "\">\n"
        << style << "<rect class=\"paper\" width=\"" << width << "\" height=\"" << height << "\" rx=\"8\"/>\n";
    if (!title_.empty()) {
      out << "<text class=\"title\" x=\"" << margin << "\" y=\"" << margin + 8 << "\">" << xml_escaped(title_)
          << "<tspan class=\"note\" dx=\"10\">" << summary() << "</tspan></text>\n";
    }
    out << "<g transform=\"translate(" << margin << ' ' << top << ")\">\n";
    for (const bool marked : {false, true}) {
      for (node_id u = 1; u < n_drawn(); ++u) {
        if (is_marked(u) == marked) write_edge(out, u);
      }
    }
    for (node_id u = 0; u < n_drawn(); ++u)
      write_node(out, u);
    out << "</g>\n<g transform=\"translate(" << margin << ' ' << legend << ")\">\n";
    write_legend(out);
    out << "</g>\n</svg>\n";
  }

 private:
  static constexpr int margin = 20;
  static constexpr int row_height = 30;
  static constexpr int box_height = 22;
  static constexpr int gap = 40;             // between columns
  static constexpr double character = 7.83;  // width of a character of the label
  static constexpr double digit = 6.03;      // width of a digit of the probability

  static constexpr const char* style =
      "<style>\n"
      ".paper{fill:#fff}.edge{fill:none;stroke:#1f2328}.box{fill:#fff;stroke:#1f2328}\n"
      "text{font-family:ui-monospace,SFMono-Regular,Menlo,'DejaVu Sans Mono',Consolas,monospace;font-size:13px;"
      "fill:#1f2328}\n"
      "text.title,text.note,tspan.note{font-family:system-ui,'Segoe UI','DejaVu Sans',sans-serif}\n"
      "text.title{font-size:15px;font-weight:600}.note{font-size:12px;font-weight:400;fill:#656d76}\n"
      "text.p{font-size:10px}\n"
      ".root .box{fill:#1f2328}.yes .box{fill:#1a7f37;stroke:#1a7f37}.own .box{fill:#8250df;stroke:#8250df}\n"
      ".root text,.yes text,.own text{fill:#fff}.edge.yes{stroke:#1a7f37}.edge.own{stroke:#8250df}\n"
      "@media (prefers-color-scheme:dark){\n"
      ".paper{fill:#0d1117}.edge{stroke:#e6edf3}.box{fill:#0d1117;stroke:#e6edf3}text{fill:#e6edf3}"
      ".note{fill:#8d96a0}\n"
      ".root .box{fill:#e6edf3}.root text{fill:#0d1117}.yes .box{fill:#238636;stroke:#238636}"
      ".own .box{fill:#8957e5;stroke:#8957e5}\n"
      ".edge.yes{stroke:#2ea043}.edge.own{stroke:#a371f7}\n"
      "}\n</style>\n";

  struct place {
    double left, right, middle;  // middle is the box's vertical centre
  };

  node_id n_drawn() const { return static_cast<node_id>(labels_.size()); }
  bool is_own(node_id u) const { return u == tree_.n_nodes || u == path_.own(); }
  bool is_marked(node_id u) const { return is_own(u) || path_.has(u); }
  bool was_drafted(node_id u) const { return u > root_node && u < tree_.n_nodes; }
  node_id parent(node_id u) const { return u == tree_.n_nodes ? accepted_ : tree_.parent[u]; }
  const token_label& label(node_id u) const { return labels_[static_cast<std::size_t>(u)]; }

  static std::string number(double value) {
    const auto tenths = std::lround(value * 10);
    std::string text = std::to_string(tenths / 10);
    if (tenths % 10 != 0) text.append(1, '.').append(std::to_string(tenths % 10));
    return text;
  }

  static std::string percent(float log_prob) {
    const auto value = std::lround(100.0 * std::exp(static_cast<double>(log_prob)));
    return value < 1 ? "<1" : std::to_string(value);
  }

  // The darkness of a node: 1 for a sure path, down to 0.3 for paths of probability 0.001 or less.
  double ink(node_id u) const {
    if (!was_drafted(u) || is_marked(u)) return 1;
    return (std::max)(0.3, 1.0 + 0.1014 * static_cast<double>(tree_.path_log_prob[u]));
  }

  double box_width(node_id u) const {
    const double p = was_drafted(u) ? 6 + digit * static_cast<double>(percent(tree_.log_prob[u]).size()) : 0;
    return 20 + character * label(u).width + p;
  }

  void place_columns() {
    std::vector<double> widths(static_cast<std::size_t>(layout_.n_columns()), 0);
    for (node_id u = 0; u < n_drawn(); ++u) {
      double& widest = widths[static_cast<std::size_t>(layout_.column(u))];
      widest = (std::max)(widest, box_width(u));
    }
    double left = 0;
    for (const double width : widths) {
      columns_.push_back(left);
      left += width + gap;
    }
    columns_.push_back(left);
    right_ = margin + left - gap;
  }

  place place_of(node_id u) const {
    const double left = columns_[static_cast<std::size_t>(layout_.column(u))];
    return {left, left + box_width(u), layout_.row(u) * row_height + box_height / 2.0};
  }

  std::string summary() const {
    const int accepted = tree_.depth[accepted_] + (path_.own() == no_node ? 0 : 1);
    const int drafted = tree_.n_draws;
    return std::to_string(accepted) + " of " + std::to_string(drafted) + " drafted tokens accepted";
  }

  const char* class_of(node_id u) const {
    if (u == root_node) return "root";
    if (is_own(u)) return "own";
    return path_.has(u) ? "yes" : "no";
  }

  void write_edge(std::ostream& out, node_id u) const {
    const place from = place_of(parent(u));
    const place to = place_of(u);
    const double bend = to.left - gap;  // the edge is horizontal up to here
    out << "<path class=\"edge " << class_of(u) << "\" d=\"M" << number(from.right) << ' ' << number(from.middle) << 'H'
        << number(bend) << 'C' << number(bend + gap / 2.0) << ' ' << number(from.middle) << ' '
        << number(bend + gap / 2.0) << ' ' << number(to.middle) << ' ' << number(to.left) << ' ' << number(to.middle)
        << "\" stroke-width=\"" << number(is_marked(u) ? 3.0 : 0.6 + ink(u)) << "\" opacity=\"" << number(ink(u))
        << "\"";
    if (u == tree_.n_nodes) out << " stroke-dasharray=\"4 3\"";
    out << "/>\n";
  }

  void write_node(std::ostream& out, node_id u) const {
    const place at = place_of(u);
    out << "<g class=\"" << class_of(u) << "\"><title>" << xml_escaped(label(u).text);
    if (was_drafted(u)) {
      out << ": probability " << xml_escaped(percent(tree_.log_prob[u])) << " %, of the path "
          << xml_escaped(percent(tree_.path_log_prob[u])) << " %";
    }
    out << "</title><rect class=\"box\" x=\"" << number(at.left) << "\" y=\"" << number(at.middle - box_height / 2.0)
        << "\" width=\"" << number(at.right - at.left) << "\" height=\"" << box_height
        << "\" rx=\"11\" stroke-opacity=\"" << number(ink(u)) << "\"/><text x=\"" << number(at.left + 10) << "\" y=\""
        << number(at.middle + 4.5) << "\" fill-opacity=\"" << number((std::max)(0.5, ink(u))) << "\">"
        << xml_escaped(label(u).text) << "</text>";
    if (was_drafted(u)) {
      out << "<text class=\"p\" text-anchor=\"end\" x=\"" << number(at.right - 9) << "\" y=\""
          << number(at.middle + 3.7) << "\" fill-opacity=\"0.7\">" << xml_escaped(percent(tree_.log_prob[u]))
          << "</text>";
    }
    out << "</g>\n";
  }

  static void write_legend(std::ostream& out) {
    int x = 0;
    const auto entry = [&](const char* kind, const char* words, int width) {
      out << "<g class=\"" << kind << "\"><rect class=\"box\" x=\"" << x
          << ".5\" y=\"4.5\" width=\"20\" height=\"12\" rx=\"6\"/></g><text class=\"note\" x=\"" << x + 27
          << "\" y=\"14.5\">" << words << "</text>\n";
      x += width;
    };
    entry("root", "last token", 100);
    entry("yes", "accepted", 95);
    entry("own", "target's own", 116);
    entry("no", "not accepted", 116);
    out << "<text class=\"note\" x=\"" << x << "\" y=\"14.5\">number: draft probability in %</text>\n";
  }

  tree_view tree_;
  node_id accepted_;
  committed_path path_;
  tree_layout layout_;
  std::string title_;
  std::vector<token_label> labels_;
  std::vector<double> columns_;  // left edges
  double right_ = 0;
};

}  // namespace detail

//! Writes a round's tree as an SVG picture that needs no other file: the accepted path is green, the target's own token
//! purple, and other nodes are darker the more probable their path is. A token that was drawn several times shows the
//! number of draws. The picture follows the reader's choice of a light or dark background.
//!
//! Pre         text_of(token) returns the bytes of a token
template <class TextT>
void write_svg(std::ostream& out, tree_view tree, verdict v, const TextT& text_of, svg_options options = {}) {
  detail::svg_tree(tree, v, text_of, options).write(out);
}

}  // namespace espalier
