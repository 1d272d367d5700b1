// SPDX-License-Identifier: BSL-1.0
#include "espalier/kv_store/paged.hpp"

#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "catch.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/testing/kv_store_laws.hpp"
#include "raises.hpp"

namespace {

using espalier::commit_mode;
using espalier::contiguous_kv;
using espalier::page_ledger;
using espalier::paged_kv;

struct row_access {
  static void write(paged_kv& kv, int sequence, int slot, int number) {
    for (int layer = 0; layer < kv.n_layers(); ++layer) {
      for (int i = 0; i < kv.row_size(); ++i) {
        kv.key(layer, sequence, slot)[i] = static_cast<float>(10 * number + layer);
        kv.value(layer, sequence, slot)[i] = -static_cast<float>(10 * number + layer);
      }
    }
  }
  // The number, or -1 where the parts of the row are not of one number.
  static int read(paged_kv& kv, int sequence, int slot) {
    const int number = static_cast<int>(kv.key(0, sequence, slot)[0]) / 10;
    for (int layer = 0; layer < kv.n_layers(); ++layer) {
      for (int i = 0; i < kv.row_size(); ++i) {
        const auto expected = static_cast<float>(10 * number + layer);
        if (kv.key(layer, sequence, slot)[i] != expected || kv.value(layer, sequence, slot)[i] != -expected) return -1;
      }
    }
    return number;
  }
};

}  // namespace

TEST_CASE("A paged store keeps the laws, whatever the size of its pages") {
  const auto mode = GENERATE(commit_mode::compact, commit_mode::truncate);
  const auto page_size = GENERATE(1, 4, 7, 50);
  const int n_pages = 3 * ((20 - 1) / page_size + 1);
  paged_kv kv(2, 3, 3, 20, page_size, n_pages, mode);
  espalier::testing::check_kv_store(kv, 3, row_access());
  for (int s = 0; s < 3; ++s)
    kv.truncate(s, 0);
  CHECK(kv.n_free() == n_pages);
}

TEST_CASE("Sequences take pages as they grow and give them back") {
  paged_kv kv(1, 2, 3, 100, 8, 5);
  REQUIRE(kv.append(0, 17) == 0);
  CHECK(kv.n_free() == 2);
  REQUIRE(kv.append(1, 16) == 0);
  CHECK(kv.n_free() == 0);
  CHECK(kv.append(2, 1) == -1);
  CHECK(kv.append(1, 1) == -1);
  CHECK(kv.append(0, 7) == 17);  // the last page has room
  CHECK(kv.append(0, 1) == -1);
  CHECK(kv.append(0, 2000000000) == -1);
  CHECK(kv.append(1, 0) == 16);
  for (int slot = 0; slot < 24; ++slot)
    row_access::write(kv, 0, slot, slot);
  REQUIRE(kv.commit(0, std::vector<std::int32_t>{0, 9, 23}) == 3);
  CHECK(kv.n_free() == 2);
  CHECK(row_access::read(kv, 0, 1) == 9);
  CHECK(row_access::read(kv, 0, 2) == 23);
  CHECK(kv.append(2, 16) == 0);
  CHECK(kv.n_free() == 0);
  CHECK(row_access::read(kv, 0, 2) == 23);
}

TEST_CASE("No two slots share a place, however pages are handed out") {
  paged_kv kv(2, 3, 4, 40, 4, 40);
  std::mt19937 random(3);
  for (int step = 0; step < 200; ++step) {
    const int sequence = static_cast<int>(random() % 4);
    if (random() % 3 == 0) {
      kv.truncate(sequence, 0);
    } else {
      kv.append(sequence, static_cast<int>(random() % 9));
    }
    std::set<const float*> places;
    std::size_t slots = 0;
    for (int s = 0; s < 4; ++s) {
      const int n = kv.append(s, 0);
      slots += static_cast<std::size_t>(n);
      for (int slot = 0; slot < n; ++slot) {
        for (int layer = 0; layer < 2; ++layer) {
          for (int i = 0; i < 3; ++i) {
            places.insert(kv.key(layer, s, slot) + i);
            places.insert(kv.value(layer, s, slot) + i);
          }
        }
      }
    }
    REQUIRE(places.size() == slots * 12);
  }
}

TEST_CASE("Sizes out of range are refused, and a pool that is used up says so") {
  CHECK_THROWS_AS(paged_kv(0, 1, 1, 1, 1, 1), espalier::option_error);
  CHECK_THROWS_AS(paged_kv(1, 0, 1, 1, 1, 1), espalier::option_error);
  CHECK_THROWS_AS(paged_kv(1, 1, 0, 1, 1, 1), espalier::option_error);
  CHECK_THROWS_AS(paged_kv(1, 1, 1, 0, 1, 1), espalier::option_error);
  CHECK_THROWS_AS(paged_kv(1, 1, 1, 1, 0, 1), espalier::option_error);
  CHECK_THROWS_AS(paged_kv(1, 1, 1, 1, 1, 0), espalier::option_error);
  CHECK_THROWS_AS(paged_kv(1 << 20, 1 << 24, 1, 1, 1 << 10, 1 << 10), espalier::option_error);
  CHECK_THROWS_AS(paged_kv(1, 1, 1, 1, 0), espalier::option_error);
  CHECK_THROWS_AS(paged_kv(1, 1, 0, 1, 1), espalier::option_error);
  CHECK_THROWS_AS(paged_kv(1, 1, 1 << 20, 1 << 20, 1), espalier::option_error);
  CHECK(paged_kv(1, 1, 3, 21, 10).n_free() == 9);
  page_ledger ledger(2, 100, 10, 4);
  ledger.ensure(0, 25);
  CHECK(says(message_of<espalier::input_error>([&] { ledger.ensure(1, 11); }),
             "sequence 1 needs 2 more pages of 10 slots", "only 1 of 4 are free"));
  CHECK(ledger.n_free() == 1);
  CHECK(ledger.pages(1).empty());
  CHECK(says(message_of<espalier::input_error>([&] { ledger.ensure(1, 101); }), "101 slots", "capacity is 100"));
  CHECK(says(message_of<espalier::input_error>([&] { ledger.ensure(2, 1); }), "sequence 2"));
}
