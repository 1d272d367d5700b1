// SPDX-License-Identifier: BSL-1.0
#include "espalier/core/row_origin.hpp"

#include <limits>
#include <vector>

#include "catch.hpp"
#include "espalier/sampling/softmax.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("messages about logits say which row it is") {
  const std::vector<float> bad{0, nan_value}, impossible(2, -infinity);
  const auto of_bad = [&](row_origin row) { return message_of<numeric_error>([&] { argmax(bad, row); }); };
  const auto of_none = [&](row_origin row) { return message_of<numeric_error>([&] { argmax(impossible, row); }); };
  using model = row_origin::model;
  CHECK(
      says(of_bad(row_origin::after_node(model::target, 3, 5)),
           "the target's logit of token 1 after node 5 of sequence 3 is nan; logits must be finite or minus infinity"));
  CHECK(says(of_bad(row_origin::after_node(model::draft, 0, 0)),
             "the draft's logit of token 1 after node 0 (the pending token) of sequence 0 is nan"));
  CHECK(says(of_bad(row_origin::after_token(model::draft, 0, 16)),
             "the draft's logit of token 1 after token 16 of sequence 0 is nan"));
  CHECK(says(of_bad(row_origin::of_block(2)), "the draft's logit of token 1 in row 2 of the block is nan"));
  CHECK(says(of_none(row_origin::after_node(model::target, 3, 5)),
             "all of the target's logits after node 5 of sequence 3 are minus infinity; one token at least must be"));
  CHECK(says(of_none(7), "all logits in row 7 are minus infinity"));
}
