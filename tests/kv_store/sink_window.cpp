// SPDX-License-Identifier: BSL-1.0
#include "espalier/kv_store/sink_window.hpp"

#include <cstdint>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/testing/windowed_kv_store_laws.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

using store = sink_window_kv<>;

// Every float of every layer bears the number, so that a row half moved is seen.
struct row_access {
  static void each(store& kv, int s, int slot, const auto& f) {
    for (int layer = 0; layer < kv.n_layers(); ++layer) {
      for (int i = 0; i < kv.row_size(); ++i) {
        f(kv.key(layer, s, slot)[i], layer * 10 + i);
        f(kv.value(layer, s, slot)[i], -layer * 10 - i - 1);
      }
    }
  }
  void write(store& kv, int s, int slot, int number) const {
    each(kv, s, slot, [&](float& x, int place) { x = static_cast<float>(number * 100 + place); });
  }
  int read(store& kv, int s, int slot) const {
    const int number = static_cast<int>(kv.key(0, s, slot)[0]) / 100;
    bool whole = true;
    each(kv, s, slot, [&](float& x, int place) { whole = whole && x == static_cast<float>(number * 100 + place); });
    return whole ? number : -1;
  }
};

// Appends and commits rows that bear the numbers from `first` on.
template <class KVStoreT>
void add(KVStoreT& kv, int first, int n) {
  for (int i = first; i < first + n; ++i) {
    const int slot = kv.append(0, 1);
    REQUIRE(slot == kv.held(0));
    *kv.key(0, 0, slot) = *kv.value(0, 0, slot) = static_cast<float>(i);
    const std::int32_t kept[] = {0};
    REQUIRE(kv.commit(0, kept) == 1);
  }
}

std::vector<int> values(auto& kv) {
  std::vector<int> all;
  for (int slot = 0; slot < kv.held(0); ++slot)
    all.push_back(static_cast<int>(*kv.value(0, 0, slot)));
  return all;
}

}  // namespace

TEST_CASE("WindowedKVStore laws: sink_window_kv, both commit modes, one and three sequences, any shape of window") {
  for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
    for (const int n : {1, 3}) {
      for (const sink_window_options& options : {sink_window_options{2, 6, 4, 5, mode},
                                                 {0, 3, 7, 2, mode},
                                                 {3, 8, 1, 0, mode},
                                                 {1, 1, 1, 1, mode},
                                                 {0, 12, 12, 20, mode}}) {
        INFO(options.sinks << " + " << options.window << " + " << options.block << ", scratch " << options.scratch);
        store kv(2, 3, n, options);
        CHECK(kv.compacts() == (mode == commit_mode::compact));
        testing::check_windowed_kv_store(kv, n, row_access());
      }
    }
  }
}

TEST_CASE("the window slides over the oldest tokens after the sinks") {
  store kv(1, 1, 1, {.sinks = 2, .window = 3, .block = 2, .scratch = 4});
  CHECK(kv.capacity() == 11);
  add(kv, 0, 6);
  CHECK(values(kv) == std::vector{0, 1, 2, 3, 4, 5});
  CHECK(kv.until_slide(0) == 1);
  add(kv, 6, 1);
  CHECK(values(kv) == std::vector{0, 1, 4, 5, 6});
  CHECK(kv.size(0) == 7);
  CHECK(kv.until_slide(0) == 2);
  add(kv, 7, 1);
  kv.truncate(0, 7);
  CHECK(values(kv) == std::vector{0, 1, 4, 5, 6});
  add(kv, 7, 4);
  CHECK(values(kv) == std::vector{0, 1, 8, 9, 10});
  CHECK(kv.append(0, 6) == 5);
  CHECK(kv.append(0, 1) == -1);

  // Rows that a window has slid over are gone: the text is to be read again.
  kv.truncate(0, 10);
  CHECK(kv.size(0) == 0);
  CHECK(kv.held(0) == 0);
  add(kv, 0, 7);
  CHECK(values(kv) == std::vector{0, 1, 4, 5, 6});
}

TEST_CASE("keys are turned by as many positions as they move, those that do not move stay") {
  // A turn by n positions adds -n to a key, and the layer's number to show that it hears it.
  struct adding_turner {
    int calls = 0;
    void operator()(int layer, std::span<float> key, int n) {
      CHECK(layer == 0);
      CHECK(key.size() == 1);
      key[0] -= static_cast<float>(n);
      ++calls;
    }
  };
  sink_window_kv kv(1, 1, 1, {.sinks = 1, .window = 5, .block = 3, .scratch = 0}, adding_turner());
  // The key of row i bears i, which is its position at first. Afterwards it bears its slot.
  for (int i = 0; i < 60; ++i) {
    const int slot = kv.append(0, 1);
    *kv.key(0, 0, slot) = static_cast<float>(slot);
    *kv.value(0, 0, slot) = static_cast<float>(i);
    const std::int32_t kept[] = {0};
    kv.commit(0, kept);
    for (int s = 0; s < kv.held(0); ++s)
      REQUIRE(*kv.key(0, 0, s) == static_cast<float>(s));
    REQUIRE(*kv.value(0, 0, 0) == 0);
    REQUIRE(*kv.value(0, 0, kv.held(0) - 1) == static_cast<float>(i));
  }
}

TEST_CASE("a text of any length takes no more memory") {
  store kv(2, 4, 1, {.sinks = 2, .window = 20, .block = 5, .scratch = 8});
  const std::vector<std::int32_t> kept{0, 2, 3};
  const allocation_count allocations;
  for (int i = 0; i < 20000; ++i) {
    if (kv.append(0, 8) < 0) FAIL("there is no room");
    kv.commit(0, kept);
  }
  CHECK(allocations.so_far() == 0);
  CHECK(kv.size(0) > 50000);
  CHECK(kv.capacity() == 35);
}

TEST_CASE("sizes of a window out of range, and sequences that are not there, are refused") {
  const auto message = [](const sink_window_options& o) {
    return message_of<option_error>([&] { store(1, 1, 1, o); });
  };
  CHECK(says(message({.sinks = -1}), "sinks is -1"));
  CHECK(says(message({.window = 0}), "window is 0"));
  CHECK(says(message({.block = 0}), "block is 0"));
  CHECK(says(message({.scratch = -1}), "scratch is -1"));
  store kv(1, 1, 2, {.window = 4, .block = 2, .scratch = 3});
  for (const int bad : {-1, 2}) {
    CHECK_THROWS_AS(kv.size(bad), input_error);
    CHECK_THROWS_AS(kv.truncate(bad, 0), input_error);
    CHECK_THROWS_AS(kv.append(bad, 1), input_error);
    CHECK_THROWS_AS(kv.commit(bad, {}), input_error);
  }
  kv.append(0, 3);
  CHECK_THROWS_AS(kv.commit(0, std::vector<std::int32_t>{1, 0}), input_error);
  CHECK_THROWS_AS(kv.commit(0, std::vector<std::int32_t>{3}), input_error);
  CHECK(kv.commit(0, std::vector<std::int32_t>{0, 1, 2}) == 3);
}
