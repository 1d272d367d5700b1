// SPDX-License-Identifier: BSL-1.0
#include "espalier/kv_store/paged.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/kv_store/saved_sequence.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/testing/kv_store_laws.hpp"
#include "raises.hpp"

namespace {

using espalier::commit_mode;
using espalier::contiguous_kv;
using espalier::paged_kv;
using espalier::token_id;

static_assert(!espalier::SharingKVStore<contiguous_kv> && !espalier::SharingKVStore<espalier::token_kv>);

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

using text = std::vector<token_id>;

text run(token_id first, int n) {
  text tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Commits rows that bear the numbers of their tokens; false where there is no room.
bool write(paged_kv& kv, int sequence, const text& tokens) {
  const int n = static_cast<int>(tokens.size());
  const int first = kv.append(sequence, n);
  if (first < 0) return false;
  for (int i = 0; i < n; ++i)
    row_access::write(kv, sequence, first + i, tokens[static_cast<std::size_t>(i)]);
  kv.commit(sequence, run(0, n));
  kv.remember(sequence, first, tokens);
  return true;
}

// The numbers of all committed rows.
text rows(paged_kv& kv, int sequence) {
  text numbers;
  for (int i = 0; i < kv.size(sequence); ++i)
    numbers.push_back(row_access::read(kv, sequence, i));
  return numbers;
}

text known(const paged_kv& kv, int sequence) {
  return {kv.prefix(sequence).begin(), kv.prefix(sequence).end()};
}

text joined(text a, const text& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("A paged store keeps the laws, whatever the size of its pages") {
  const auto mode = GENERATE(commit_mode::compact, commit_mode::truncate);
  const auto page_size = GENERATE(1, 4, 7, 16, 50);
  const int n_pages = 3 * ((20 - 1) / page_size + 1);
  paged_kv kv(2, 3, 3, 20, page_size, n_pages, mode);
  espalier::testing::check_kv_store(kv, 3, row_access());
  for (int s = 0; s < 3; ++s)
    kv.truncate(s, 0);
  CHECK(kv.n_free() == n_pages);
}

TEST_CASE("Rows are shared by the laws in any number of sequences and pages") {
  const auto mode = GENERATE(commit_mode::compact, commit_mode::truncate);
  const auto page_size = GENERATE(1, 4, 7, 16, 50);
  const auto n_sequences = GENERATE(1, 2, 5);
  const auto spare = GENERATE(1, 3, 100);
  paged_kv kv(2, 3, n_sequences, 20, page_size, (20 - 1) / page_size + 1 + spare, mode);
  espalier::testing::check_sharing_kv_store(kv, n_sequences, row_access());
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

TEST_CASE("Of a prompt that many texts have each row is there once") {
  const auto page_size = GENERATE(1, 4, 7, 16, 50);
  constexpr int n_sequences = 64;
  const text prompt = run(1, 500);
  const int n_own = 20;
  const auto pages_of = [&](int n) { return (n + page_size - 1) / page_size; };
  paged_kv kv(1, 2, n_sequences, 600, page_size, pages_of(500) + n_sequences * (pages_of(n_own) + 1));
  REQUIRE(write(kv, 0, prompt));
  for (int s = 1; s < n_sequences; ++s)
    CHECK(kv.adopt(s, prompt) >= 500 / page_size * page_size);
  CHECK(kv.n_pages() - kv.n_free() == pages_of(500));
  for (int s = 0; s < n_sequences; ++s) {
    REQUIRE(write(kv, s, run(kv.size(s) + 1, 500 - kv.size(s))));
    REQUIRE(write(kv, s, run(1000 * (s + 1), n_own)));
  }
  const int used = kv.n_pages() - kv.n_free();
  CHECK(used <= pages_of(500) + n_sequences * (pages_of(n_own) + 1));
  CHECK(used * page_size <= 500 + n_sequences * (n_own + 2 * page_size));
  for (int s = 0; s < n_sequences; ++s) {
    const text tokens = joined(prompt, run(1000 * (s + 1), n_own));
    CHECK(known(kv, s) == tokens);
    CHECK(rows(kv, s) == tokens);
  }
  for (int s = 0; s < n_sequences; ++s)
    kv.truncate(s, 0);
  CHECK(kv.n_free() == kv.n_pages());
  CHECK(kv.adopt(5, joined(prompt, run(64000, 30))) == 520);
}

TEST_CASE("Sequences that share rows know their tokens, and that they changed") {
  paged_kv kv(1, 2, 3, 40, 4, 30);
  REQUIRE(write(kv, 0, run(1, 11)));
  const auto first = kv.version(0), second = kv.version(1);
  CHECK(kv.adopt(1, run(1, 30)) == 8);
  CHECK(kv.size(1) == 8);
  CHECK(known(kv, 1) == run(1, 8));
  CHECK(kv.version(0) == first);
  CHECK(kv.version(1) != second);
  CHECK(kv.version(1) != first);
  const auto adopted = kv.version(1);
  CHECK(kv.adopt(1, run(1, 8)) == 8);  // it has them
  CHECK(kv.version(1) == adopted);
  kv.append(1, 3);
  CHECK(kv.adopt(1, run(1, 6)) == 6);
  CHECK(kv.append(1, 0) == 6);
  CHECK(known(kv, 1) == run(1, 6));

  REQUIRE(write(kv, 2, run(60, 6)));
  kv.fork(0, 2);
  CHECK(known(kv, 2) == run(1, 11));
  CHECK(kv.adopt(1, run(60, 6)) == 6);  // which the fork gave up
  CHECK(kv.version(0) == first);
  CHECK(kv.version(2) != first);
  // Of some rows the tokens are not known.
  REQUIRE(kv.append(2, 2) == 11);
  row_access::write(kv, 2, 11, 50);
  row_access::write(kv, 2, 12, 51);
  kv.commit(2, text{0, 1});
  kv.append(2, 1);
  kv.fork(2, 1);
  CHECK(known(kv, 1) == run(1, 11));
  CHECK(rows(kv, 1) == joined(run(1, 11), {50, 51}));
  CHECK(kv.append(1, 0) == 13);
  kv.fork(2, 2);
  CHECK(kv.append(2, 0) == 13);
  kv.truncate(0, 0);
  kv.truncate(1, 0);
  kv.truncate(2, 0);
  CHECK(kv.adopt(0, joined(run(1, 11), {50, 51})) == 11);
  for (const int bad : {-1, 3}) {
    CHECK_THROWS_AS(kv.adopt(bad, run(1, 3)), espalier::input_error);
    CHECK_THROWS_AS(kv.fork(bad, 0), espalier::input_error);
    CHECK_THROWS_AS(kv.fork(0, bad), espalier::input_error);
  }
  CHECK(rows(kv, 0) == run(1, 11));
}

TEST_CASE("Scratch is nobody else's, and is moved together beside rows that are shared") {
  paged_kv kv(2, 3, 3, 40, 16, 30);
  REQUIRE(write(kv, 0, run(1, 5)));
  kv.fork(0, 1);
  REQUIRE(kv.append(0, 4) == 5);
  for (int i = 0; i < 4; ++i)
    row_access::write(kv, 0, 5 + i, 100 + i);
  kv.fork(0, 2);
  REQUIRE(kv.append(1, 3) == 5);
  REQUIRE(kv.append(2, 3) == 5);
  for (int i = 0; i < 3; ++i) {
    row_access::write(kv, 1, 5 + i, 200 + i);
    row_access::write(kv, 2, 5 + i, 300 + i);
  }
  REQUIRE(kv.append(0, 1) == 9);
  row_access::write(kv, 0, 9, 104);
  CHECK(kv.commit(0, text{1, 4}) == 2);
  CHECK(kv.commit(1, text{0, 2}) == 2);
  CHECK(kv.commit(2, text{2}) == 1);
  CHECK(rows(kv, 0) == joined(run(1, 5), {101, 104}));
  CHECK(rows(kv, 1) == joined(run(1, 5), {200, 202}));
  CHECK(rows(kv, 2) == joined(run(1, 5), {302}));
}

TEST_CASE("A saved sequence is read into pages that others share, and theirs stay as they are") {
  paged_kv kv(2, 3, 3, 40, 4, 30);
  REQUIRE(write(kv, 0, run(1, 11)));
  kv.fork(0, 1);
  kv.fork(0, 2);
  REQUIRE(write(kv, 2, run(50, 6)));
  std::vector<std::byte> bytes;
  write_sequence(kv, 2, bytes);
  read_sequence(kv, 1, bytes);
  CHECK(rows(kv, 0) == run(1, 11));
  CHECK(rows(kv, 1) == joined(run(1, 11), run(50, 6)));
  CHECK(known(kv, 1) == joined(run(1, 11), run(50, 6)));
  CHECK(rows(kv, 2) == rows(kv, 1));
  // Rows that do not fit leave nothing, and nothing in the way.
  paged_kv smaller(2, 3, 2, 16, 4, 4);
  REQUIRE(write(smaller, 0, run(1, 11)));
  smaller.fork(0, 1);
  CHECK_THROWS_AS(read_sequence(smaller, 1, bytes), espalier::input_error);
  CHECK(smaller.size(1) == 0);
  CHECK(rows(smaller, 0) == run(1, 11));
  for (const int s : {0, 1, 2})
    kv.truncate(s, 0);
  CHECK(kv.n_free() == 30);
  CHECK(kv.adopt(0, joined(run(1, 11), run(50, 6))) == 17);
  CHECK(rows(kv, 0) == joined(run(1, 11), run(50, 6)));
}

TEST_CASE("Nothing is allocated once a sequence has been used") {
  paged_kv kv(1, 2, 3, 40, 4, 12);
  const text tokens = run(1, 15), all = run(0, 15);
  for (int s = 0; s < 3; ++s)
    kv.remember(s, 0, {});
  const allocation_count count;
  for (int round = 0; round < 20; ++round) {
    kv.adopt(0, tokens);
    const int n = 15 - kv.size(0);
    kv.append(0, n);
    kv.commit(0, std::span(all).first(static_cast<std::size_t>(n)));
    kv.remember(0, 15 - n, std::span(tokens).last(static_cast<std::size_t>(n)));
    kv.fork(0, 1 + round % 2);
    kv.append(0, round);
    kv.truncate(0, round % 15);
  }
  CHECK(count.so_far() == 0);
}

TEST_CASE("Sizes out of range are refused") {
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
  CHECK(paged_kv(1, 1, 3, 21, 10, 2).capacity() == 20);
  CHECK(paged_kv(1, 1, 3, 21, 10, 3).capacity() == 21);
}
