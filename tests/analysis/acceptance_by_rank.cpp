// SPDX-License-Identifier: BSL-1.0
#include "espalier/analysis/acceptance_by_rank.hpp"

#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/decoder/round.hpp"
#include "raises.hpp"

using namespace espalier;

TEST_CASE("acceptance by rank counts the draws of the nodes that were reached") {
  tree<> t(8);
  t.reset(0);
  const node_id a = t.append(root_node, 5, 0);
  const node_id b = t.append(root_node, 6, 0);
  t.append(root_node, 7, 0);
  t.append(a, 5, 0);
  const node_id d = t.append(b, 5, 0);
  const node_id e = t.append(b, 6, 0);
  acceptance_by_rank count(2);
  count.count(t, {e, 9});                              // root: the second; b: the second; e is a leaf
  count.count(t, {b, 9});                              // root: the second; b: none
  count.count(t, {root_node, 9});                      // root: none
  count(round_record{.tree = t, .decision = {a, 9}});  // root: the first; a: none
  count.count(t, {b, t.view().token[d]});              // cut short: root: the second; b: the first
  CHECK(count.made(0) == 5 + 3 + 1);
  CHECK(count.accepted(0) == 1 + 1);
  CHECK(count.made(1) == 5 + 3);
  CHECK(count.accepted(1) == 3 + 1);
  CHECK(count.rates() == std::vector<double>{2.0 / 9, 4.0 / 8});
}

TEST_CASE("repeated draws share the rank of the first of them") {
  tree<> t(4);
  t.reset(0);
  for (const token_id token : {3, 3, 4, 3})
    t.draw(root_node, token, 0);
  acceptance_by_rank count(3);
  count.count(t, {2, 0});
  CHECK(count.made(0) == 1);
  CHECK(count.accepted(1) == 1);
  CHECK(count.made(2) == 0);
  CHECK(count.rates() == std::vector<double>{0, 1, 0});
  for (const std::int32_t bad : {0, 65})
    CHECK(says(message_of<option_error>([=] { acceptance_by_rank c(bad); }), "ranks is " + std::to_string(bad)));
}
