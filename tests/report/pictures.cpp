// SPDX-License-Identifier: BSL-1.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "espalier/report/dot.hpp"
#include "espalier/report/svg.hpp"
#include "espalier/report/terminal.hpp"
#include "random_trees.hpp"
#include "xml.hpp"

namespace {

using espalier::node_id;
using report_test::complaint;
using report_test::count;
using report_test::drafted;
using report_test::random_tree;

std::string svg(const drafted& d, const std::string& title = "a < b") {
  std::ostringstream out;
  espalier::write_svg(out, d.tree, d.decision, report_test::text_of, {.title = title});
  return out.str();
}

std::string dot(const drafted& d) {
  std::ostringstream out;
  espalier::write_dot(out, d.tree, d.decision, report_test::text_of);
  return out.str();
}

std::string drawn(const drafted& d, espalier::terminal_options options = {}) {
  std::ostringstream out;
  espalier::write_tree(out, d.tree, d.decision, report_test::text_of, options);
  return out.str();
}

struct box {
  double x, y, width;
};

std::vector<box> boxes(const std::string& picture) {
  std::vector<box> found;
  const std::string mark = "<rect class=\"box\" x=\"";
  for (std::size_t at = picture.find(mark); at != std::string::npos; at = picture.find(mark, at + 1)) {
    box b{};
    if (std::sscanf(picture.c_str() + at + mark.size(), "%lf\" y=\"%lf\" width=\"%lf", &b.x, &b.y, &b.width) == 3)
      found.push_back(b);
  }
  return found;
}

std::string without_colour(const std::string& text) {
  static const std::regex code("\x1b\\[[0-9;]*m");
  return std::regex_replace(text, code, "");
}

// the ─┬─ house ─ 日本
//      └─ was
drafted small() {
  drafted d;
  d.tree.reset(0);
  const node_id house = d.tree.append(0, 1, -0.1F);
  d.tree.append(0, 11, -2.0F);
  d.tree.append(house, 5, -5.0F);
  d.decision = {house, 3};
  return d;
}

}  // namespace

TEST_CASE("an SVG is well-formed XML, whatever the tokens are", "[svg]") {
  CHECK(complaint("<a b=\"<\"/>") != "");
  CHECK(complaint("<a>&nbsp;</a>") != "");
  CHECK(complaint("<a><b></a></b>") != "");
  for (unsigned seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    CHECK(complaint(svg(random_tree(seed))) == "");
  }
}

TEST_CASE("an SVG shows every node once, and no two boxes overlap", "[svg]") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const drafted d = random_tree(seed);
    const espalier::tree_view tree = d.tree;
    const std::string picture = svg(d);
    const bool own_was_drafted = tree.find_child(d.decision.accepted, d.decision.token) != espalier::no_node;
    const int legend = 4;
    std::vector<box> found = boxes(picture);
    INFO("seed " << seed);
    REQUIRE(static_cast<int>(found.size()) == tree.n_nodes + (own_was_drafted ? 0 : 1) + legend);
    CHECK(count(picture, "<g class=\"own\">") == 1 + 1);
    CHECK(count(picture, "<g class=\"yes\">") == tree.depth[d.decision.accepted] + 1);
    CHECK(count(picture, "<path ") == tree.n_nodes - (own_was_drafted ? 1 : 0));
    found.resize(found.size() - legend);
    bool apart = true;
    for (std::size_t i = 0; i < found.size(); ++i) {
      for (std::size_t j = i + 1; j < found.size(); ++j) {
        const bool beside = found[i].x + found[i].width < found[j].x || found[j].x + found[j].width < found[i].x;
        apart = apart && (beside || std::abs(found[i].y - found[j].y) >= 22);
      }
    }
    CHECK(apart);
  }
}

TEST_CASE("an SVG counts what was accepted and escapes its title", "[svg]") {
  const std::string picture = svg(small());
  CHECK(count(picture, "1 of 3 drafted tokens accepted") == 2);
  CHECK(count(picture, "a &lt; b") == 2);
  CHECK(count(picture, "prefers-color-scheme:dark") == 1);
  CHECK(count(picture, "http") == 1);  // the name space: nothing is loaded from elsewhere
  CHECK(svg(small(), "").find("class=\"title\"") == std::string::npos);
}

TEST_CASE("a DOT file has a line for every node and edge", "[dot]") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const drafted d = random_tree(seed);
    const espalier::tree_view tree = d.tree;
    const std::string graph = dot(d);
    const int own = tree.find_child(d.decision.accepted, d.decision.token) == espalier::no_node ? 1 : 0;
    INFO("seed " << seed);
    CHECK(count(graph, " -> ") == tree.n_nodes - 1 + own);
    CHECK(count(graph, " [label=") == 2 * tree.n_nodes - 1 + own);
    CHECK(count(graph, "  own [") == own);
    CHECK(count(graph, "#1a7f4b") == 2 * tree.depth[d.decision.accepted] + 1);
    // Quotes pair up on every line once escaped ones are taken out.
    std::istringstream lines(graph);
    for (std::string line; std::getline(lines, line);) {
      static const std::regex escaped(R"(\\[\\"])");
      CHECK(count(std::regex_replace(line, escaped, ""), "\"") % 2 == 0);
    }
  }
}

TEST_CASE("a tree in the terminal", "[terminal]") {
  CHECK(drawn(small()) ==
        "·the ━┯━ house ━┱─ 日本\n"
        "      │         ┗▶ ↵\n"
        "      └─ ·was\n");
  CHECK(drawn(small(), {.ascii = true}) ==
        "_the =+= house =+- \\xE6\\x97\\xA5~\n"
        "      |         `> \\n\n"
        "      `- _was\n");
  drafted d = small();
  d.decision = {0, 11};  // drafted, but as the token after which the session stopped
  CHECK(drawn(d) ==
        "·the ━┱─ house ─ 日本\n"
        "      ┗▶ ·was\n");
  d.decision = {0, 4};
  CHECK(drawn(d) ==
        "·the ━┱─ house ─ 日本\n"
        "      ┠─ ·was\n"
        "      ┗▶ \\xE6\n");
  d.tree.reset(0);
  d.decision = {0, 1};
  CHECK(drawn(d) == "·the ▶ house\n");
}

TEST_CASE("pictures tell how often a token was drawn", "[terminal][svg][dot]") {
  drafted d;
  d.tree.reset(0);
  const node_id house = d.tree.draw(0, 1, -0.1F);
  d.tree.draw(0, 11, -2.0F);
  d.tree.draw(0, 1, -0.1F);
  d.tree.draw(house, 5, -1.0F);
  d.tree.draw(house, 5, -1.0F);
  d.tree.draw(0, 1, -0.1F);
  d.decision = {house, 3};
  CHECK(drawn(d) ==
        "·the ━┯━ house ×3 ━┱─ 日本 ×2\n"
        "      │            ┗▶ ↵\n"
        "      └─ ·was\n");
  CHECK(drawn(d, {.ascii = true}) ==
        "_the =+= house x3 =+- \\xE6\\x97\\xA5~ x2\n"
        "      |            `> \\n\n"
        "      `- _was\n");
  CHECK(count(svg(d), ">house ×3<") == 1);
  CHECK(count(svg(d), "1 of 6 drafted tokens accepted") == 2);
  CHECK(count(dot(d), "[label=\"house ×3\", ") == 1);
}

TEST_CASE("colours add escape codes to the same picture, and none come without", "[terminal]") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const drafted d = random_tree(seed);
    INFO("seed " << seed);
    const std::string plain = drawn(d, {.width = 1 << 20});
    CHECK(plain.find('\x1b') == std::string::npos);
    const std::string coloured = drawn(d, {.width = 1 << 20, .colour = true});
    CHECK(coloured.find("\x1b[1;35m") != std::string::npos);
    CHECK(without_colour(coloured) == plain);
  }
}

TEST_CASE("a tree fits its width, and ASCII is ASCII", "[terminal]") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const drafted d = random_tree(seed);
    INFO("seed " << seed);
    std::istringstream lines(drawn(d, {.width = 80, .ascii = true}));
    std::size_t widest = 0;
    bool ascii = true;
    for (std::string line; std::getline(lines, line);) {
      widest = (std::max)(widest, line.size());
      ascii = ascii && std::all_of(line.begin(), line.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
    }
    CHECK(widest <= 80);
    CHECK(ascii);
  }
}
