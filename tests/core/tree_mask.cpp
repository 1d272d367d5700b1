// SPDX-License-Identifier: BSL-1.0
#include "espalier/core/tree_mask.hpp"

#include <array>
#include <cstdint>
#include <type_traits>

#include "catch.hpp"

using namespace espalier;

static_assert(std::is_trivially_copyable_v<mask_row>);

TEST_CASE("mask rows: words, bits and unions") {
  STATIC_REQUIRE(mask_words(0) == 0);
  STATIC_REQUIRE(mask_words(1) == 1);
  STATIC_REQUIRE(mask_words(32) == 1);
  STATIC_REQUIRE(mask_words(33) == 2);
  std::array<std::uint32_t, 3> words{};
  const mask_row row{words.data(), 3};
  row.set(31);
  row.set(64);
  CHECK(words == std::array<std::uint32_t, 3>{0x80000000U, 0, 1});
  CHECK(row.test(31));
  CHECK_FALSE(row.test(32));
  for (std::int32_t n = 0; n <= 96; ++n) {
    row.clear();
    row.include_first(n);
    bool right = true;
    for (std::int32_t j = 0; j < 96; ++j)
      right = right && row.test(j) == (j < n);
    REQUIRE(right);
  }
}
