// SPDX-License-Identifier: BSL-1.0
// Tested by tests/report/pictures.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/report/committed_path.hpp"
#include "espalier/report/token_label.hpp"
#include "espalier/views.hpp"

namespace espalier {

struct terminal_options {
  int width = 100;  //!< in columns; tokens of a wider tree are shortened, and if that is not enough, its ends left out
  bool ascii = false;   //!< - = | and + in place of box characters
  bool colour = false;  //!< escape codes: accepted tokens green, the target's own magenta, unlikely paths dim
};

namespace detail {

// Draws one tree, one line for each leaf, the first child of a node on the node's own line.
class terminal_tree {
 public:
  template <class TextT>
  terminal_tree(tree_view tree, verdict v, const TextT& text_of, const terminal_options& options)
      : tree_(tree), accepted_(v.accepted), path_(tree, v), options_(options) {
    for (int limit = 16;; limit -= 4) {
      labels_.clear();
      for (const node_id u : views::nodes(tree))
        labels_.push_back(node_label(tree, u, text_of(tree.token[u]), options.ascii, limit));
      labels_.emplace_back(text_of(v.token), options.ascii, limit);  // label of the target's own token
      fits_ = widest() <= options.width;
      if (limit == 4 || fits_) break;
    }
  }

  void write(std::ostream& out) {
    draw(root_node);
    end_line();
    out << text_;
  }

 private:
  // The vertical line from which the children of a node branch off. It stands in `column`, and is heavy down to the
  // child on the path.
  struct branch {
    int column;
    std::size_t n_children;
    std::size_t next;
    std::size_t on_path;  // index of the child on the path; n_children if there is none
  };

  node_id own_leaf() const { return tree_.n_nodes; }  // stands for the target's own token if it was not drafted
  bool is_own(node_id u) const { return u == own_leaf() || u == path_.own(); }
  bool is_marked(node_id u) const { return is_own(u) || path_.has(u); }
  const token_label& label(node_id u) const { return labels_[static_cast<std::size_t>(u)]; }
  const char* pick(const char* box, const char* ascii) const { return options_.ascii ? ascii : box; }

  int n_children(node_id u) const {
    int n = u == accepted_ && path_.own() == no_node ? 1 : 0;
    for ([[maybe_unused]] const node_id child : views::children(tree_, u))
      ++n;
    return n;
  }

  // Number of columns from the end of a label to the labels of its children.
  int arm(node_id u) const { return n_children(u) > 1 ? 5 : 3; }

  int widest() const {
    std::vector<int> end(static_cast<std::size_t>(tree_.n_nodes));
    int most = 0;
    for (const node_id u : views::nodes(tree_)) {
      const node_id parent = tree_.parent[u];
      const int begin = u == root_node ? 0 : end[static_cast<std::size_t>(parent)] + arm(parent);
      end[static_cast<std::size_t>(u)] = begin + label(u).width;
      most = (std::max)(most, end[static_cast<std::size_t>(u)]);
    }
    return (std::max)(most, end[static_cast<std::size_t>(accepted_)] + arm(accepted_) + labels_.back().width);
  }

  std::vector<node_id> children(node_id u) const {
    if (u == own_leaf()) return {};
    std::vector<node_id> found;
    for (const node_id child : views::children(tree_, u))
      found.push_back(child);
    if (u == accepted_ && path_.own() == no_node) found.push_back(own_leaf());
    return found;
  }

  void draw(node_id u) {
    put(colour_of(u), label(u).text, label(u).width);
    const std::vector<node_id> below = children(u);
    if (below.empty()) return;
    // If the tree does not fit as a whole, every label must leave room for a mark of two columns.
    const bool fits = fits_ || std::all_of(below.begin(), below.end(), [&](node_id c) {
                        return column_ + arm(u) + label(c).width + 2 <= options_.width;
                      });
    if (!fits) return put(dim, pick(" …", " ~"), 2);
    const auto on_path = static_cast<std::size_t>(
        std::find_if(below.begin(), below.end(), [&](node_id c) { return is_marked(c); }) - below.begin());
    open_.push_back({column_ + 2, below.size(), 0, on_path});
    for (std::size_t i = 0; i < below.size(); ++i) {
      open_.back().next = i + 1;
      if (i > 0) {
        end_line();
        begin_line();
      }
      connect(open_.back(), i, below[i]);
      draw(below[i]);
    }
    open_.pop_back();
  }

  // Draws the line that leads to child i: " ━ " to an only child; else " ━┳━ " to the first child, and to each
  // other one "┣━ ", below the joint of the first.
  void connect(const branch& b, std::size_t i, node_id child) {
    const bool here = i == b.on_path;
    const bool passes = b.on_path > i && b.on_path < b.n_children;  // the path goes on down
    const bool more = i + 1 < b.n_children;
    const char* left_colour = here || passes ? path_colour : dim;
    const char* tip = is_own(child) ? pick("▶", ">") : (here ? pick("━", "=") : pick("─", "-"));
    if (i == 0) put("", " ", 1);
    if (b.n_children > 1) {
      if (i == 0) put(left_colour, here || passes ? pick("━", "=") : pick("─", "-"), 1);
      const char* joint = pick("├", "+");
      if (i == 0) {
        joint = here ? pick("┯", "+") : (passes ? pick("┱", "+") : pick("┬", "+"));
      } else if (passes) {
        joint = pick("┠", "+");
      } else if (here) {
        joint = more ? pick("┡", "+") : pick("┗", "`");
      } else if (!more) {
        joint = pick("└", "`");
      }
      put(left_colour, joint, 1);
    }
    put(here ? path_colour : dim, tip, 1);
    put("", " ", 1);
  }

  void begin_line() {
    // Draws the vertical lines of all open branches except the innermost, which connect() draws.
    for (std::size_t k = 0; k + 1 < open_.size(); ++k) {
      const branch& b = open_[k];
      if (b.next >= b.n_children) continue;
      const bool heavy = b.on_path >= b.next && b.on_path < b.n_children;
      put("", std::string(static_cast<std::size_t>(b.column - column_), ' '), b.column - column_);
      put(heavy ? path_colour : dim, heavy ? pick("┃", "|") : pick("│", "|"), 1);
    }
    const int indent = open_.back().column - column_;
    put("", std::string(static_cast<std::size_t>(indent), ' '), indent);
  }

  void end_line() {
    text_ += '\n';
    column_ = 0;
  }

  const char* colour_of(node_id u) const {
    if (is_own(u)) return "\x1b[1;35m";
    if (u == root_node) return "\x1b[1m";
    if (path_.has(u)) return "\x1b[1;32m";
    return tree_.path_log_prob[u] < -2.3F ? dim : "";  // less likely than one in ten
  }

  void put(const char* colour, std::string_view piece, int columns) {
    const bool coloured = options_.colour && colour[0] != '\0';
    if (coloured) text_ += colour;
    text_ += piece;
    if (coloured) text_ += "\x1b[0m";
    column_ += columns;
  }

  static constexpr const char* path_colour = "\x1b[32m";
  static constexpr const char* dim = "\x1b[2m";

  tree_view tree_;
  node_id accepted_;
  committed_path path_;
  terminal_options options_;
  std::vector<token_label> labels_;
  std::vector<branch> open_;
  bool fits_ = false;
  std::string text_;
  int column_ = 0;
};

}  // namespace detail

//! Writes a round's tree with box characters, one line for each leaf: the lines of the accepted path are heavy, and the
//! target's own token stands behind an arrow. A token that was drawn several times shows the number of draws.
//!
//! Pre         text_of(token) returns the bytes of a token
template <class TextT>
void write_tree(std::ostream& out, tree_view tree, verdict v, const TextT& text_of, terminal_options options = {}) {
  detail::terminal_tree(tree, v, text_of, options).write(out);
}

}  // namespace espalier
