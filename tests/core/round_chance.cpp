// SPDX-License-Identifier: BSL-1.0
#include "espalier/core/round_chance.hpp"

#include <vector>

#include "catch.hpp"
#include "espalier/core/tree.hpp"
#include "raises.hpp"

using namespace espalier;

TEST_CASE("the chance of a round is keyed by the length of the text, whose last token is the root") {
  const std::vector<token_id> text{4, 5, 6};
  tree<> t(1);
  t.reset(6);
  const philox_chance chance = round_chance(7, 2, text, t), expected(7, 2, 3), other(7, 2, 4);
  for (const purpose use : {purpose::draft, purpose::accept, purpose::residual, purpose::select, purpose::token}) {
    CHECK(chance.uniform({0, 1, use}) == expected.uniform({0, 1, use}));
    CHECK(chance.uniform({0, 1, use}) != other.uniform({0, 1, use}));
  }
}

TEST_CASE("a text that does not end with the root is refused: its length is another round's") {
  const std::vector<token_id> text{4, 5, 6};
  const auto refused = [&](std::size_t length, token_id root) {
    tree<> t(1);
    t.reset(root);
    return message_of<input_error>([&] { round_chance(7, 0, std::span(text).first(length), t); });
  };
  CHECK(says(refused(2, 6), "token 6", "text of 2 tokens"));
  CHECK(says(refused(3, 5), "token 5", "text of 3 tokens"));
  CHECK(says(refused(0, 5), "text of 0 tokens"));
  CHECK(refused(3, 6).empty());
}
