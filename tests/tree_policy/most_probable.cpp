// SPDX-License-Identifier: BSL-1.0
// Policies that draft the most probable tokens: what chain, fixed and dynatree have in common.
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/fixed.hpp"
#include "raises.hpp"
#include "tree_policy/grow_tree.hpp"

using namespace espalier;

TEST_CASE("tokens of draft probability 0 are never drafted") {
  // One token has all the probability: a breadth of 3 finds one child.
  testing::row_drafter drafter(4, [](std::span<const token_id> path) {
    std::vector<double> row(4, 0.0);
    row[path.size() % 4] = 1;
    return row;
  });
  fixed wide({.depth = 3, .breadth = 3});
  CHECK(grow(wide, drafter).size() == 4);
  dynatree_options options = dynatree_options::first_paper();
  options.max_depth = options.base_depth = 3;
  dynatree unsure(options);
  CHECK(grow(unsure, drafter).size() == 5);
  testing::row_drafter silent(4, [](std::span<const token_id>) { return std::vector<double>(4, 0.0); });
  chain straight;
  CHECK(grow(straight, silent).size() == 1);
  CHECK(grow(wide, silent).size() == 1);
  CHECK(grow(unsure, silent).size() == 1);
}

TEST_CASE("options of tree policies out of range are errors that name option, value and range") {
  const auto chain_message = [](int k) { return message_of<option_error>([&] { chain c({.length = k}); }); };
  for (const int bad : {0, -1, 1025})
    CHECK(says(chain_message(bad), "option length is " + std::to_string(bad) + ",", "between 1 and 1024"));

  const auto fixed_message = [](fixed_options o) { return message_of<option_error>([&] { fixed f(o); }); };
  for (const int bad : {0, -3, 65})
    CHECK(says(fixed_message({.depth = bad}), "option depth is " + std::to_string(bad) + ",", "between 1 and 64"));
  for (const int bad : {0, -3, 65})
    CHECK(says(fixed_message({.breadth = bad}), "option breadth is " + std::to_string(bad) + ",", "between 1 and 64"));
  for (const int bad : {0, 1, -5, 65537})
    CHECK(says(fixed_message({.budget = bad}), "option budget is " + std::to_string(bad) + ",", "between 2 and 65536"));
  CHECK(fixed_message({.depth = 64, .breadth = 64, .budget = 65536}).empty());

  const auto message = [](dynatree_options o) { return message_of<option_error>([&] { dynatree d(o); }); };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(message({}).empty());
  CHECK(message(dynatree_options::first_paper()).empty());
  for (const int bad : {0, 1, -1, 65537})
    CHECK(says(message({.budget = bad}), "option budget is " + std::to_string(bad) + ",", "between 2 and 65536"));
  CHECK(says(message({.max_depth = 0}), "option max_depth is 0,", "between 1 and 64"));
  CHECK(says(message({.max_depth = 65}), "option max_depth is 65,", "between 1 and 64"));
  CHECK(says(message({.base_depth = 0}), "option base_depth is 0,", "between 1 and 8"));
  CHECK(says(message({.base_depth = 9}), "option base_depth is 9,", "between 1 and 8"));
  CHECK(says(message({.max_breadth = 0}), "option max_breadth is 0,", "between 1 and 64"));
  CHECK(says(message({.max_breadth = 65}), "option max_breadth is 65,", "between 1 and 64"));
  CHECK(says(message({.mid_breadth = 4}), "option mid_breadth is 4,", "between 1 and 3"));
  CHECK(says(message({.min_breadth = 0}), "option min_breadth is 0,", "between 1 and 2"));
  CHECK(says(message({.min_breadth = 3}), "option min_breadth is 3,", "between 1 and 2"));
  for (const double bad : {-0.1, 1.1, nan}) {
    CHECK(says(message({.high_confidence = bad}), "option high_confidence is ", "between 0 and 1"));
    CHECK(says(message({.prune_probability = bad}), "option prune_probability is ", "between 0 and 1"));
    CHECK(says(message({.deep_probability = bad}), "option deep_probability is ", "between 0 and 1"));
  }
  for (const double bad : {-0.1, 0.95, nan})
    CHECK(says(message({.low_confidence = bad}), "option low_confidence is ", "between 0 and 0.9"));
  for (const double bad : {-0.1, 0.6, nan})
    CHECK(says(message({.stop_probability = bad}), "option stop_probability is ", "between 0 and 0.5"));
}
