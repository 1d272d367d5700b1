// SPDX-License-Identifier: BSL-1.0
#include "espalier/decoder/check_growth.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/core/tree.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

// The root's row, and trees below it.
const std::vector<double> row{0.5, 0.3, 0.2, 0};
const std::int32_t row_of[] = {0, -1, -1, -1};
const node_rows<double> rows{{row.data(), 1, 4}, row_of};

tree<> tree_of(const std::vector<token_id>& draws) {
  tree<> t(6);
  t.reset(0);
  for (const token_id x : draws)
    t.draw(root_node, x, static_cast<float>(std::log(row[static_cast<std::size_t>(x)])));
  return t;
}

template <regime Sampling>
std::string said_of(const tree<>& t) {
  return message_of<input_error>([&] { check_growth<Sampling>(t, rows); });
}

template <regime Sampling>
std::string said(const std::vector<token_id>& draws) {
  return said_of<Sampling>(tree_of(draws));
}

}  // namespace

TEST_CASE("trees that are what their regime says pass") {
  CHECK(said<regime::deterministic>({0, 1}).empty());
  CHECK(said<regime::deterministic>({1, 0, 2}).empty());
  CHECK(said<regime::iid>({2, 2, 0}).empty());
  CHECK(said<regime::without_replacement>({2, 0}).empty());
  CHECK(said<regime::without_replacement>({2, 0, 1, 3}).empty());
  CHECK(said<regime::single_path | regime::iid>({1}).empty());
  CHECK(said<regime::iid>({}).empty());
}

TEST_CASE("a deterministic tree leaves out no better token, and drafts none that is impossible or twice") {
  CHECK(says(said<regime::deterministic>({0, 2}), "a less probable token after node 0 than token 1"));
  CHECK(says(said<regime::deterministic>({0, 1, 2, 3}), "token 3 after node 0", "probability 0"));
  CHECK(says(said<regime::deterministic>({0, 0}), "token 0 after node 0 twice"));
}

TEST_CASE("draws without replacement do not repeat, independent ones are possible, a path does not branch") {
  CHECK(says(said<regime::without_replacement>({1, 1}), "token 1 after node 0 twice"));
  CHECK(says(said<regime::iid>({3}), "token 3 after node 0", "probability 0"));
  CHECK(says(said<regime::single_path>({0, 1}), "draws 2 tokens after node 0"));
}

TEST_CASE("draws have the log-probabilities of their row, and the row was asked for") {
  tree<> t = tree_of({0});
  t.append(1, 2, -1);
  CHECK(says(said_of<regime::iid>(t), "draws from node 1, which it has not asked about"));
  for (const token_id outside : {-5, 4, 999}) {
    tree<> t_outside(3);
    t_outside.reset(0);
    t_outside.append(root_node, outside, -1);
    CHECK(says(said_of<regime::iid>(t_outside), "token " + std::to_string(outside) + " was drafted at node 1"));
  }
  tree<> wrong(3);
  wrong.reset(0);
  wrong.draw(root_node, 1, -0.5F);
  CHECK(says(said_of<regime::iid>(wrong), "token 1 after node 0 has log-probability -0.5", "-1.2"));
}
