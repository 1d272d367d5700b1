// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/files/rounded_row.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/model/files/weight_storage.hpp"
#include "model/llama/random_weights.hpp"

using namespace espalier;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("every F16 and BF16 number rounds to itself, and what lies between to the nearer") {
  for (std::uint32_t bits = 0; bits < 0x7C00U; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = detail::float_from_f16(half),
                next = detail::float_from_f16(static_cast<std::uint16_t>(half + 1));
    REQUIRE(detail::f16_from_float(value) == half);
    REQUIRE(detail::f16_from_float(-value) == (half | 0x8000U));
    if (half + 1U == 0x7C00U) break;
    const float middle = value + (next - value) / 2;  // exact
    REQUIRE(detail::f16_from_float(middle) == half + half % 2);
    REQUIRE(detail::f16_from_float(std::nextafter(middle, next)) == half + 1);
    REQUIRE(detail::f16_from_float(std::nextafter(middle, value)) == half);
  }
  CHECK(detail::f16_from_float(65520.0F) == 0x7C00U);
  CHECK(detail::f16_from_float(65519.0F) == 0x7BFFU);
  CHECK(std::isnan(detail::float_from_f16(detail::f16_from_float(std::numeric_limits<float>::quiet_NaN()))));
  CHECK(detail::bf16_from_float(1.0F) == 0x3F80U);
  CHECK(detail::bf16_from_float(1.0F + 0x1p-8F) == 0x3F80U);  // halves to even
  CHECK(detail::bf16_from_float(1.0F + 3 * 0x1p-8F) == 0x3F82U);
  CHECK(std::isnan(detail::float_from_bf16(detail::bf16_from_float(std::numeric_limits<float>::quiet_NaN()))));
}

TEST_CASE("a rounded row is within half a step of what it was") {
  std::vector<float> values(64);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(static_cast<float>(i * i)) * (i < 32 ? 1.0F : 0.01F);
  std::fill(values.begin() + 40, values.begin() + 44, 0.0F);
  rounded_row round;
  std::vector<float> found(64);
  for (const auto& [type, steps] : {std::pair{weight_type::q8_0, 127.0F}, std::pair{weight_type::q4_0, 8.0F}}) {
    const weight_row row = round(weight_row::of(values.data(), 64), type);
    CHECK(row.type == type);
    CHECK(row.bytes.size() == row_bytes(type, 64));
    row.decode(found.data());
    for (std::size_t i = 0; i < 64; ++i) {
      const float step = (i < 32 ? 1.0F : 0.01F) / steps;
      // A magnitude on the side that q4_0 has seven steps of is off by a whole one.
      REQUIRE(std::fabs(found[i] - values[i]) <= (type == weight_type::q4_0 ? 1.01F : 0.51F) * step);
    }
  }
  const weight_row bytes = round(weight_row::of(values.data(), 64), weight_type::i8_rows);
  CHECK(bytes.scale == std::fabs(*std::max_element(values.begin(), values.end(),
                                                   [](float a, float b) { return std::fabs(a) < std::fabs(b); })) /
                           127.0F);
  bytes.decode(found.data());
  for (std::size_t i = 0; i < 64; ++i)
    REQUIRE(std::fabs(found[i] - values[i]) <= 0.501F * bytes.scale);
  const std::vector<float> zeros(32, 0.0F);
  round(weight_row::of(zeros.data(), 32), weight_type::i8_rows).decode(found.data());
  CHECK(std::all_of(found.begin(), found.begin() + 32, [](float v) { return v == 0.0F; }));
  round(weight_row::of(zeros.data(), 32), weight_type::q4_0).decode(found.data());
  CHECK(std::all_of(found.begin(), found.begin() + 32, [](float v) { return v == 0.0F; }));
}

TEST_CASE("rows of every type become bytes, each weight within half a step of what it was") {
  std::mt19937 random(6);
  rounded_row round;
  for (const weight_type type : weight_types) {
    INFO(name_of(type));
    const random_weights row(type, 512, random);
    const std::vector<float> values = row.floats();
    const weight_row bytes = round(row.row(), weight_type::i8_rows);
    REQUIRE(bytes.type == weight_type::i8_rows);
    REQUIRE(bytes.scale > 0.0F);
    for (std::size_t i = 0; i < values.size(); ++i)
      REQUIRE(std::fabs(bytes.scale * static_cast<float>(static_cast<std::int8_t>(bytes.bytes[i])) - values[i]) <=
              0.501F * bytes.scale);
  }
}

TEST_CASE("only floats are rounded, to fewer bytes, and where blocks fit; all types to bytes") {
  using enum weight_type;
  CHECK(held_type(f32, 64, weight_storage::q8_0) == q8_0);
  CHECK(held_type(bf16, 64, weight_storage::q4_0) == q4_0);
  CHECK(held_type(f32, 7, weight_storage::bf16) == bf16);
  CHECK(held_type(f16, 64, weight_storage::bf16) == f16);
  CHECK(held_type(f32, 65, weight_storage::q8_0) == f32);
  CHECK(held_type(q8_0, 64, weight_storage::q4_0) == q8_0);
  CHECK(held_type(i8_rows, 64, weight_storage::q4_0) == i8_rows);
  for (const weight_type type : weight_types) {
    CHECK(held_type(type, 256, weight_storage::f32) == f32);
    CHECK(held_type(type, 256, weight_storage::as_stored) == type);
    CHECK(held_type(type, 300, weight_storage::i8_rows) == i8_rows);
  }
}

TEST_CASE("a weight that is not finite is not rounded") {
  const std::vector<float> values(32, std::numeric_limits<float>::infinity());
  rounded_row round;
  CHECK_THROWS_WITH(round(weight_row::of(values.data(), 32), weight_type::q8_0), ContainsSubstring("q8_0"));
}

TEST_CASE("numbers too small for a scale become zeros, and those too large are not rounded") {
  using enum weight_type;
  rounded_row round;
  std::vector<float> values(32, 1e-38F), found(32, 1.0F);
  for (const weight_type type : {q8_0, q4_0}) {
    round(weight_row::of(values.data(), 32), type).decode(found.data());
    CHECK(std::all_of(found.begin(), found.end(), [](float v) { return v == 0.0F; }));
  }
  values.assign(32, 6e5F);
  CHECK_THROWS_WITH(round(weight_row::of(values.data(), 32), q4_0), ContainsSubstring("too large for q4_0"));
  values.assign(32, 3.4e38F);
  CHECK_THROWS_WITH(round(weight_row::of(values.data(), 32), bf16), ContainsSubstring("too large for bf16"));
}
