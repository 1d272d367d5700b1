// SPDX-License-Identifier: BSL-1.0
#include "espalier/kv_store/recurrent.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/kv_store/saved_sequence.hpp"
#include "espalier/testing/kv_store_laws.hpp"
#include "espalier/testing/recurrent_store_laws.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

static_assert(!SharingKVStore<recurrent_kv>);

constexpr recurrent_shape shape{.layers = 2, .state_size = 5, .row_size = 3, .reach = 3};

// Every float of every layer bears the number, so that a row half moved is seen.
struct access {
  static void each(auto& kv, int s, int slot, const auto& f) {
    for (int layer = 0; layer < kv.n_layers(); ++layer) {
      for (int i = 0; i < kv.row_size(); ++i) {
        f(kv.key(layer, s, slot)[i], layer * 10 + i);
        f(kv.value(layer, s, slot)[i], -layer * 10 - i - 1);
      }
    }
    for (int layer = 0; layer < kv.shape().layers; ++layer) {
      for (int i = 0; i < kv.shape().row_size; ++i)
        f(kv.kept_row(layer, s, slot)[i], 40 + layer * 10 + i);
    }
  }
  void write(auto& kv, int s, int slot, int number) const {
    each(kv, s, slot, [&](float& x, int place) { x = static_cast<float>(number * 100 + place); });
  }
  int read(auto& kv, int s, int slot) const {
    const int number = static_cast<int>(kv.key(0, s, slot)[0]) / 100;
    bool whole = true;
    each(kv, s, slot, [&](float& x, int place) { whole = whole && x == static_cast<float>(number * 100 + place); });
    return whole ? number : -1;
  }
  void write_row(auto& kv, int s, int slot, int number) const { write(kv, s, slot, number); }
  int read_row(auto& kv, int s, int slot) const { return read(kv, s, slot); }
  void write_state(auto& kv, int s, int from, int number) const {
    for (int layer = 0; layer < kv.shape().layers; ++layer) {
      for (int i = 0; i < kv.shape().state_size; ++i)
        kv.spare_state(layer, s, from)[i] = static_cast<float>(number + layer * 7 + i);
    }
  }
  int read_state(auto& kv, int s, int n) const {
    const int number = static_cast<int>(kv.state(0, s, n)[0]);
    for (int layer = 0; layer < kv.shape().layers; ++layer) {
      for (int i = 0; i < kv.shape().state_size; ++i) {
        if (kv.state(layer, s, n)[i] != static_cast<float>(number + layer * 7 + i)) return -1;
      }
    }
    return number;
  }
};

void commit_chain(auto& kv, int s, int n) {
  const int first = kv.append(s, n);
  REQUIRE(first == kv.size(s));
  std::vector<std::int32_t> all(static_cast<std::size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  for (const int i : all)
    access().write(kv, s, first + i, first + i + 1);
  REQUIRE(kv.commit(s, all) == n);
  std::vector<token_id> tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  kv.remember(s, first, tokens);
}

void hold(auto& kv, int s, int n, int number) {
  const int from = kv.state_at(s, n);
  access().write_state(kv, s, from, number);
  kv.hold_state(s, from, n);
}

}  // namespace

TEST_CASE("KVStore laws: recurrent_kv, with recurrent layers and without, both commit modes") {
  for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
    for (const int n : {1, 3}) {
      recurrent_kv kv(2, 3, shape, n, 23, {.rows = 23, .commit = mode});
      testing::check_kv_store(kv, n, access());
      recurrent_kv plain(2, 3, {}, n, 23, {.rows = 2, .commit = mode});
      CHECK(plain.most_rows() == 23);
      testing::check_kv_store(plain, n, access());
    }
  }
}

TEST_CASE("RecurrentStore laws: recurrent_kv, both commit modes, one and three sequences, any reach") {
  for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
    for (const int n : {1, 3}) {
      for (const int reach : {0, 3}) {
        recurrent_shape s = shape;
        s.reach = reach;
        recurrent_kv kv(2, 3, s, n, 100, {.rows = 20, .commit = mode});
        CHECK(kv.most_rows() == 20);
        testing::check_recurrent_store(kv, n, access());
      }
    }
  }
}

TEST_CASE("laws of a recurrent store in pages, with recurrent layers and without") {
  for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
    for (const int page_size : {4, 7, 32}) {
      const int n_pages = page_ledger::enough(3, 23, page_size);
      paged_recurrent_kv plain(2, 3, {}, 3, 23, page_size, n_pages, {.rows = 2, .commit = mode});
      CHECK(plain.most_rows() == 23);
      testing::check_kv_store(plain, 3, access());
      for (const int reach : {0, 3}) {
        recurrent_shape s = shape;
        s.reach = reach;
        paged_recurrent_kv kv(2, 3, s, 3, 100, page_size, page_ledger::enough(3, 100, page_size),
                              {.rows = 20, .commit = mode});
        testing::check_recurrent_store(kv, 3, access());
        CHECK(kv.n_free() == kv.n_pages());
      }
    }
  }
}

TEST_CASE("a text in pages that was given up is found up to its latest state, while its pages are there") {
  paged_recurrent_kv kv(1, 3, shape, 2, 64, 8, 9, {.rows = 16});
  const auto tokens = [](int n) {
    std::vector<token_id> all(static_cast<std::size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    return all;
  };
  commit_chain(kv, 0, 10);
  hold(kv, 0, 10, 1000);
  commit_chain(kv, 0, 3);
  CHECK(kv.adopt(1, tokens(13)) == 0);  // it is held, and nothing of it was given up
  kv.truncate(0, 0);
  CHECK(kv.n_free() == 9);
  CHECK(kv.adopt(1, tokens(9)) == 0);
  CHECK(kv.adopt(1, tokens(13)) == 10);
  CHECK(access().read_state(kv, 1, 10) == 1000);
  for (int slot = 10 - shape.reach; slot < 10; ++slot)
    CHECK(access().read(kv, 1, slot) == slot + 1);
  CHECK(kv.append(1, 17) == -1);
  CHECK(kv.append(1, 16) == 10);
  // Another sequence finds it, too, until its pages have other rows.
  CHECK(kv.adopt(0, tokens(20)) == 10);
  kv.truncate(0, 0), kv.truncate(1, 0);
  for (const int s : {0, 1}) {
    while (kv.append(s, 4) >= 0) {
      const int n = kv.size(s);
      kv.commit(s, tokens(4));
      hold(kv, s, n + 4, 7);
    }
  }
  CHECK(kv.n_free() == 0);
  kv.truncate(0, 0), kv.truncate(1, 0);
  CHECK(kv.adopt(0, tokens(13)) == 0);
  CHECK(kv.size(0) == 0);
}

TEST_CASE("where the last pages of a text were evicted, the state of its earlier part is found") {
  paged_recurrent_kv kv(1, 3, shape, 2, 24, 8, 3, {.rows = 16});
  commit_chain(kv, 0, 8);
  hold(kv, 0, 8, 1000);
  kv.truncate(0, 0);
  std::vector<token_id> text(16);
  std::iota(text.begin(), text.end(), 0);
  CHECK(kv.adopt(0, text) == 8);
  commit_chain(kv, 0, 8);
  hold(kv, 0, 16, 2000);
  kv.truncate(0, 0);
  CHECK(kv.append(1, 16) == 0);
  CHECK(kv.adopt(0, text) == 8);
  CHECK(access().read_state(kv, 0, 8) == 1000);
}

TEST_CASE("as many states of texts stay as there are sequences, those that were used last") {
  paged_recurrent_kv kv(1, 3, shape, 2, 64, 4, 32, {.rows = 16});
  const auto text = [](int first) { return std::vector<token_id>{first, first + 1, first + 2, first + 3}; };
  const std::int32_t all[] = {0, 1, 2, 3};
  const auto write = [&](int first) {
    REQUIRE(kv.append(0, 4) == 0);
    for (int i = 0; i < 4; ++i)
      access().write(kv, 0, i, i + 1);
    kv.commit(0, all);
    kv.remember(0, 0, text(first));
    hold(kv, 0, 4, 100 * first);
    kv.truncate(0, 0);
  };
  write(1), write(2);
  CHECK(kv.adopt(1, text(1)) == 4);
  CHECK(access().read_state(kv, 1, 4) == 100);
  write(3);  // in place of 2, which was used before 1
  CHECK(kv.adopt(1, text(2)) == 0);
  CHECK(kv.adopt(1, text(1)) == 4);
  CHECK(kv.adopt(1, text(3)) == 4);
  CHECK(access().read_state(kv, 1, 4) == 300);
}

TEST_CASE("a recurrent store goes back to the states that it holds, and no further") {
  recurrent_kv kv(1, 3, shape, 1, 64, {.rows = 16});
  commit_chain(kv, 0, 10);
  hold(kv, 0, 10, 1000);
  commit_chain(kv, 0, 8);
  hold(kv, 0, 18, 2000);
  kv.truncate(0, 17);
  CHECK(kv.size(0) == 17);
  CHECK(kv.state_at(0, 17) == 10);
  CHECK(access().read_state(kv, 0, 10) == 1000);
  CHECK(kv.append(0, 10) == -1);  // 17 rows after the state
  CHECK(kv.append(0, 9) == 17);
  kv.truncate(0, 10);
  CHECK(kv.size(0) == 10);
  kv.truncate(0, 9);
  CHECK(kv.size(0) == 0);
  CHECK(kv.prefix(0).empty());
  CHECK(kv.append(0, 16) == 0);
}

TEST_CASE("a recurrent store that goes back leaves room for a pass, or keeps nothing") {
  recurrent_kv kv(1, 3, shape, 1, 64, {.rows = 16});
  commit_chain(kv, 0, 16);
  hold(kv, 0, 16, 1000);
  kv.truncate(0, 15);  // its rows are there, from the beginning on, but no other would fit
  CHECK(kv.size(0) == 0);
  CHECK(kv.append(0, 16) == 0);
}

TEST_CASE("a saved sequence keeps its latest state and the rows after it") {
  recurrent_kv kv(1, 3, shape, 2, 64, {.rows = 16}), other(1, 3, shape, 1, 64, {.rows = 16});
  commit_chain(kv, 1, 10);
  hold(kv, 1, 10, 1000);
  commit_chain(kv, 1, 8);
  hold(kv, 1, 18, 2000);
  commit_chain(kv, 1, 6);
  std::vector<std::byte> bytes;
  write_sequence(kv, 1, bytes);
  commit_chain(other, 0, 4);
  CHECK(read_sequence(other, 0, bytes).empty());
  REQUIRE(other.size(0) == 24);
  CHECK(other.prefix(0).size() == 24);
  CHECK(other.state_at(0, 24) == 18);
  CHECK(access().read_state(other, 0, 18) == 2000);
  for (int slot = 18; slot < 24; ++slot)
    CHECK(access().read(other, 0, slot) == slot + 1);
  // Where only the beginning is known, no state is held at it.
  for (const int known : {9, 4}) {
    kv.remember(1, known, {});
    bytes.clear();
    write_sequence(kv, 1, bytes);
    CHECK(read_sequence(other, 0, bytes).empty());
    CHECK(other.size(0) == 0);
  }
  // Another shape, and too few rows.
  recurrent_shape wider = shape;
  wider.state_size = 6;
  recurrent_kv another(1, 3, wider, 1, 64, {.rows = 16}), smaller(1, 3, shape, 1, 64, {.rows = 4});
  commit_chain(kv, 0, 6);
  bytes.clear();
  write_sequence(kv, 0, bytes);
  CHECK(says(message_of<input_error>([&] { read_sequence(another, 0, bytes); }), "numbers a recurrent state"));
  CHECK(message_of<input_error>([&] { read_sequence(smaller, 0, bytes); }) ==
        "the saved sequence has 6 rows after its recurrent state, but there is room for 2.");
  CHECK(smaller.size(0) == 0);
}

TEST_CASE("sizes of a recurrent store out of range are errors that name them") {
  const auto message = [](recurrent_shape s, int rows) {
    return message_of<option_error>([=] { recurrent_kv kv(1, 1, s, 1, 8, {.rows = rows}); });
  };
  CHECK(says(message(shape, 1), "rows is 1,"));
  CHECK(says(message({.layers = -1}, 8), "number of recurrent layers is -1,"));
  CHECK(says(message({.layers = 1, .row_size = 1}, 8), "recurrent state size is 0,"));
  CHECK(says(message({.layers = 1, .state_size = 1}, 8), "recurrent row size is 0,"));
  CHECK(says(message({.layers = 1, .state_size = 1, .row_size = 1, .reach = -1}, 8), "recurrent reach is -1,"));
}

TEST_CASE("a round of a recurrent store allocates nothing") {
  recurrent_kv kv(1, 3, shape, 1, 64, {.rows = 16});
  const std::int32_t kept[] = {0, 2};
  const allocation_count allocated;
  kv.append(0, 4);
  kv.hold_state(0, kv.state_at(0, 1), 1);
  kv.commit(0, kept);
  kv.truncate(0, 1);
  CHECK(allocated.so_far() == 0);
}

TEST_CASE("a recurrent store in pages allocates nothing, once its sequences have remembered tokens") {
  paged_recurrent_kv kv(1, 3, shape, 2, 64, 8, 16, {.rows = 16});
  kv.remember(0, 0, {}), kv.remember(1, 0, {});
  const std::int32_t kept[] = {0, 1, 2};
  const token_id tokens[] = {5, 6, 7};
  const allocation_count allocated;
  kv.append(0, 3);
  kv.hold_state(0, kv.state_at(0, 2), 2);
  kv.commit(0, kept);
  kv.remember(0, 0, tokens);
  kv.fork(0, 1);
  kv.truncate(0, 0);
  CHECK(kv.adopt(0, tokens) == 2);
  CHECK(allocated.so_far() == 0);
}
