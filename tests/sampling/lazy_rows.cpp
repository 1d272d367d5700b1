// SPDX-License-Identifier: BSL-1.0
#include "espalier/sampling/lazy_rows.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("lazy rows are made for the nodes that are visited, once each") {
  const std::vector<float> logits{0, 1, 2, nan_value, 0, 0, 5, 5, 1};
  const std::vector<std::int32_t> row_of{0, 2, 1};
  lazy_rows rows({.temperature = 1});
  rows.reserve(3, 3);
  rows.open({logits.data(), 3, 3}, row_of, 6);
  CHECK(rows.argmax(0) == 2);
  CHECK(rows.argmax(1) == 0);
  const std::span<const float> first = rows.row(0);
  CHECK(std::abs(static_cast<double>(first[2]) - std::exp(2.0) / (1 + std::exp(1.0) + std::exp(2.0))) < 1e-6);
  CHECK(rows.row(1)[0] == rows.row(1)[1]);
  CHECK(rows.row(0).data() == first.data());
  const std::string bad = "the target's logit of token 0 after node 2 of sequence 6 is nan";
  CHECK(says(message_of<numeric_error>([&] { rows.row(2); }), bad));
  CHECK(says(message_of<numeric_error>([&] { rows.argmax(2); }), bad));
  // A new round forgets the old rows.
  const std::vector<float> other{9, 0, 0};
  const std::vector<std::int32_t> root_only{0};
  rows.open({other.data(), 1, 3}, root_only, 0);
  CHECK(rows.row(0)[0] > 0.99F);
  const std::vector<float> holes{-infinity, 0, -infinity}, impossible(3, -infinity);
  rows.open({holes.data(), 1, 3}, root_only, 0);
  CHECK(rows.argmax(0) == 1);
  CHECK(rows.row(0)[0] == 0);
  CHECK(rows.row(0)[1] == 1);
  rows.open({impossible.data(), 1, 3}, root_only, 4);
  CHECK(says(message_of<numeric_error>([&] { rows.row(0); }),
             "all of the target's logits after node 0 (the pending token) of sequence 4 are minus infinity"));
}

TEST_CASE("a round beyond what was reserved, or beyond its logits, is refused, and the one before stands") {
  const std::vector<float> logits{0, 1, 2, 3, 0, 0, 5, 5, 1};
  const std::vector<std::int32_t> row_of{0, 2, 1};
  const auto refused = [&](lazy_rows<>& rows, vocab_rows<float> given, std::span<const std::int32_t> of) {
    return message_of<input_error>([&] { rows.open(given, of, 0); });
  };
  lazy_rows rows({.temperature = 1});
  CHECK(says(refused(rows, {logits.data(), 3, 3}, row_of), "room for rows of 0 nodes over 0 tokens",
             "3 nodes over 3 tokens", "reserve()"));
  rows.reserve(3, 3);
  rows.open({logits.data(), 3, 3}, row_of, 0);
  CHECK(says(refused(rows, {logits.data(), 2, 4}, std::span(row_of).first(1)), "3 nodes over 3", "1 nodes over 4"));
  const std::vector<std::int32_t> four{0, 1, 2, 0}, beyond{0, 3}, missing{0, -1};
  CHECK(says(refused(rows, {logits.data(), 3, 3}, four), "3 nodes over 3", "4 nodes over 3"));
  CHECK(says(refused(rows, {logits.data(), 3, 3}, beyond), "node 1", "row 3", "3 rows"));
  CHECK(says(refused(rows, {logits.data(), 3, 3}, missing), "node 1", "row -1"));
  CHECK(rows.argmax(1) == 0);
  CHECK(rows.row(0)[2] > 0.6F);
}
