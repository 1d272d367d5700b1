// SPDX-License-Identifier: BSL-1.0
#include "espalier/kv_store/contiguous.hpp"

#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "catch.hpp"

namespace {

using espalier::commit_mode;
using espalier::contiguous_kv;

constexpr int n_layers = 3, row_size = 5;

void write_row(contiguous_kv& kv, int sequence, int slot, int mark) {
  for (int layer = 0; layer < n_layers; ++layer) {
    for (int i = 0; i < row_size; ++i) {
      kv.key(layer, sequence, slot)[i] = static_cast<float>(1000 * mark + 10 * layer + i);
      kv.value(layer, sequence, slot)[i] = -static_cast<float>(1000 * mark + 10 * layer + i);
    }
  }
}

bool holds_row(contiguous_kv& kv, int sequence, int slot, int mark) {
  for (int layer = 0; layer < n_layers; ++layer) {
    for (int i = 0; i < row_size; ++i) {
      const auto expected = static_cast<float>(1000 * mark + 10 * layer + i);
      if (kv.key(layer, sequence, slot)[i] != expected || kv.value(layer, sequence, slot)[i] != -expected) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("rows of all layers, sequences and slots lie apart, keys from values") {
  contiguous_kv kv(n_layers, row_size, 2, 7);
  std::set<const float*> places;
  for (int layer = 0; layer < n_layers; ++layer) {
    for (int sequence = 0; sequence < 2; ++sequence) {
      for (int slot = 0; slot < 7; ++slot) {
        for (int i = 0; i < row_size; ++i) {
          places.insert(kv.key(layer, sequence, slot) + i);
          places.insert(kv.value(layer, sequence, slot) + i);
        }
      }
    }
  }
  CHECK(places.size() == 2U * n_layers * 2 * 7 * row_size);
}

TEST_CASE("a compacting store keeps any path, and what was committed stays") {
  contiguous_kv kv(n_layers, row_size, 2, 300);
  CHECK(kv.compacts());
  std::mt19937 random(1);
  std::vector<int> expected[2];
  int mark = 0;
  for (int round = 0; round < 40; ++round) {
    const int sequence = round % 2;
    const int n = static_cast<int>(random() % 9);
    const int first = kv.append(sequence, n);
    REQUIRE(first == static_cast<int>(expected[sequence].size()));
    std::vector<std::int32_t> kept;
    for (int i = 0; i < n; ++i) {
      write_row(kv, sequence, first + i, ++mark);
      if (random() % 2 == 0) {
        kept.push_back(i);
        expected[sequence].push_back(mark);
      }
    }
    CHECK(kv.commit(sequence, kept) == static_cast<int>(kept.size()));
    for (int s = 0; s < 2; ++s) {
      REQUIRE(kv.size(s) == static_cast<int>(expected[s].size()));
      for (int slot = 0; slot < kv.size(s); ++slot) {
        REQUIRE(holds_row(kv, s, slot, expected[s][static_cast<std::size_t>(slot)]));
      }
    }
  }
}

TEST_CASE("a truncating store keeps the leading run") {
  contiguous_kv kv(n_layers, row_size, 1, 20, commit_mode::truncate);
  CHECK_FALSE(kv.compacts());
  for (int i = 0; i < 6; ++i)
    write_row(kv, 0, i, i);
  kv.append(0, 6);
  CHECK(kv.commit(0, std::vector<std::int32_t>{0, 1, 3, 5}) == 2);
  CHECK(kv.size(0) == 2);
  CHECK(kv.append(0, 3) == 2);
  CHECK(kv.commit(0, std::vector<std::int32_t>{1, 2}) == 0);
  CHECK(kv.size(0) == 2);
  CHECK(holds_row(kv, 0, 1, 1));
}

TEST_CASE("append says when the cache is full, and changes nothing then") {
  contiguous_kv kv(n_layers, row_size, 1, 10);
  CHECK(kv.append(0, 6) == 0);
  CHECK(kv.append(0, 4) == 6);
  CHECK(kv.append(0, 1) == -1);
  CHECK(kv.append(0, 0) == 10);
  CHECK(kv.commit(0, std::vector<std::int32_t>{0, 9}) == 2);
  CHECK(kv.append(0, 9) == -1);
  CHECK(kv.append(0, 8) == 2);
}

TEST_CASE("truncate keeps the first rows and drops scratch") {
  contiguous_kv kv(n_layers, row_size, 1, 10);
  kv.append(0, 4);
  kv.commit(0, std::vector<std::int32_t>{0, 1, 2, 3});
  kv.append(0, 3);
  kv.truncate(0, 9);
  CHECK(kv.size(0) == 4);
  CHECK(kv.append(0, 1) == 4);
  kv.truncate(0, 1);
  CHECK(kv.size(0) == 1);
  CHECK(kv.append(0, 2) == 1);
}

TEST_CASE("kept rows out of order or out of scratch are refused, and nothing has changed") {
  contiguous_kv kv(n_layers, row_size, 1, 10);
  for (int i = 0; i < 3; ++i)
    write_row(kv, 0, i, i);
  kv.append(0, 3);
  const std::vector<std::vector<std::int32_t>> wrong = {{1, 0}, {1, 1}, {-1}, {3}, {0, 3}};
  for (const auto& kept : wrong)
    CHECK_THROWS_AS(kv.commit(0, kept), espalier::input_error);
  CHECK(kv.commit(0, std::vector<std::int32_t>{0, 2}) == 2);
  CHECK(holds_row(kv, 0, 1, 2));
}

TEST_CASE("sizes out of range and sequences that are not there are refused") {
  CHECK_THROWS_AS(contiguous_kv(0, 1, 1, 1), espalier::option_error);
  CHECK_THROWS_AS(contiguous_kv(1, 0, 1, 1), espalier::option_error);
  CHECK_THROWS_AS(contiguous_kv(1, 1, 0, 1), espalier::option_error);
  CHECK_THROWS_AS(contiguous_kv(1, 1, 1, 0), espalier::option_error);
  CHECK_THROWS_AS(contiguous_kv(1 << 20, 1 << 24, 1 << 20, 1 << 30), espalier::option_error);
  contiguous_kv kv(1, 1, 2, 1);
  CHECK_THROWS_AS(kv.size(2), espalier::input_error);
  CHECK_THROWS_AS(kv.append(-1, 1), espalier::input_error);
}
