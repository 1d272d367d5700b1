// SPDX-License-Identifier: BSL-1.0
#include "espalier/core/philox.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "espalier/core/chance.hpp"

using namespace espalier;

static_assert(std::is_trivially_copyable_v<philox_chance>);

TEST_CASE("Philox4x32-10 gives the known answers of Random123") {
  struct known_answer {
    std::uint32_t counter[4], key[2], words[4];
  };
  constexpr std::uint32_t ones = 0xFFFFFFFFU;
  auto answer = GENERATE(
      known_answer{{0, 0, 0, 0}, {0, 0}, {0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}},
      known_answer{{ones, ones, ones, ones}, {ones, ones}, {0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}},
      known_answer{{0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U},
                   {0xa4093822U, 0x299f31d0U},
                   {0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U}});
  detail::philox4x32(answer.counter, answer.key[0], answer.key[1]);
  for (int i = 0; i < 4; ++i)
    CHECK(answer.counter[i] == answer.words[i]);
}

TEST_CASE("Philox numbers depend on the key and not on the order of the calls") {
  const philox_chance a(7, 0, 3);
  const philox_chance b(7, 0, 3);
  std::vector<chance_key> keys;
  for (node_id u = 0; u < 20; ++u) {
    for (std::int32_t slot = 0; slot < 5; ++slot) {
      for (const purpose use : {purpose::draft, purpose::accept, purpose::residual, purpose::select, purpose::token})
        keys.push_back({u, slot, use});
    }
  }
  std::vector<double> forwards;
  for (const chance_key& at : keys)
    forwards.push_back(a.uniform(at));
  std::set<double> distinct;
  for (std::size_t i = keys.size(); i-- > 0;) {
    REQUIRE(b.uniform(keys[i]) == forwards[i]);
    distinct.insert(forwards[i]);
  }
  CHECK(distinct.size() == keys.size());
}

TEST_CASE("Philox numbers change with seed (both halves), stream and length") {
  const chance_key at{4, 1, purpose::residual};
  const std::set<double> distinct{philox_chance(1, 0, 0).uniform(at), philox_chance(2, 0, 0).uniform(at),
                                  philox_chance(1ULL << 32 | 1, 0, 0).uniform(at), philox_chance(1, 1, 0).uniform(at),
                                  philox_chance(1, 0, 1).uniform(at)};
  CHECK(distinct.size() == 5);
}

TEST_CASE("Philox numbers are uniform in [0, 1)") {
  constexpr int n = 200000;
  std::array<int, 100> bin{};
  double sum = 0;
  for (int i = 0; i < n; ++i) {
    const double u = philox_chance(11, 0, static_cast<std::uint32_t>(i / 1000)).uniform({i % 1000, 0, purpose::accept});
    REQUIRE((u >= 0 && u < 1));
    ++bin[static_cast<std::size_t>(u * 100)];
    sum += u;
  }
  double chi = 0;
  for (const int b : bin)
    chi += (b - n / 100.0) * (b - n / 100.0) / (n / 100.0);
  CHECK(std::abs(sum / n - 0.5) < 4 / std::sqrt(12.0 * n));
  CHECK(chi < 99 + 5 * std::sqrt(2 * 99.0));
  CHECK(chi > 99 - 5 * std::sqrt(2 * 99.0));
}

TEST_CASE("Philox verbs follow their laws") {
  constexpr int n = 40000;
  const std::vector<float> weights{0.0F, 3.0F, 0.0F, 1.0F, 4.0F, 0.0F};
  std::array<int, 6> picked{};
  std::array<int, 3> indexed{};
  int accepted = 0;
  for (int i = 0; i < n; ++i) {
    const philox_chance chance(5, 0, static_cast<std::uint32_t>(i));
    ++picked[static_cast<std::size_t>(chance.pick(std::span<const float>(weights), {1, 0, purpose::residual}))];
    ++indexed[static_cast<std::size_t>(chance.index(3, {1, 0, purpose::select}))];
    accepted += chance.accept(0.2, 0.5, {1, 0, purpose::accept}) ? 1 : 0;
    REQUIRE_FALSE(chance.accept(0.0, 0.5, {}));
    REQUIRE_FALSE(chance.accept(0.0, 0.0, {}));
    REQUIRE(chance.accept(0.5, 0.5, {}));
    REQUIRE(chance.accept(0.5, 0.0, {}));
  }
  const auto near = [](int count, double p) { return std::abs(count - n * p) < 5 * std::sqrt(n * p * (1 - p)); };
  CHECK(near(accepted, 0.4));
  CHECK(near(picked[1], 3.0 / 8));
  CHECK(near(picked[3], 1.0 / 8));
  CHECK(near(picked[4], 4.0 / 8));
  CHECK(picked[0] + picked[2] + picked[5] == 0);
  for (const int count : indexed)
    CHECK(near(count, 1.0 / 3));
}
