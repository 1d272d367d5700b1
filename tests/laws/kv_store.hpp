// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "catch.hpp"
#include "espalier/concepts/kv_store.hpp"
#include "espalier/core/error.hpp"
#include "raises.hpp"

// The laws of KVStore. AccessT writes a number into a row and reads it back:
//   access.write(kv, sequence, slot, number); access.read(kv, sequence, slot) -> number
template <espalier::KVStore KVStoreT, class AccessT>
class kv_store_laws {
 public:
  kv_store_laws(KVStoreT& kv, std::int32_t n_sequences, AccessT access)
      : kv_(kv), n_sequences_(n_sequences), access_(access), expected_(static_cast<std::size_t>(n_sequences)) {}

  void check() {
    for (std::int32_t s = 0; s < n_sequences_; ++s) {
      chain_equals_plain_appending(s);
      nothing_changes_nothing(s);
      full(s);
      truncates(s);
      refuses(s);
    }
    random_operations();
  }

 private:
  std::vector<int>& rows(std::int32_t s) { return expected_[static_cast<std::size_t>(s)]; }

  // All committed rows of all sequences are what they were.
  bool holds() {
    bool right = true;
    for (std::int32_t s = 0; s < n_sequences_; ++s) {
      right = right && kv_.size(s) == static_cast<std::int32_t>(rows(s).size());
      for (std::int32_t i = 0; right && i < kv_.size(s); ++i)
        right = access_.read(kv_, s, i) == rows(s)[static_cast<std::size_t>(i)];
    }
    return right;
  }

  std::vector<int> append(std::int32_t s, std::int32_t n) {
    const std::int32_t first = kv_.append(s, n);
    std::vector<int> numbers;
    for (std::int32_t i = 0; i < n; ++i) {
      numbers.push_back(next_number_++);
      access_.write(kv_, s, first + i, numbers.back());
    }
    return numbers;
  }

  void clear(std::int32_t s) {
    kv_.truncate(s, 0);
    rows(s).clear();
  }

  void chain_equals_plain_appending(std::int32_t s) {
    clear(s);
    for (const std::int32_t n : {1, 3, 2}) {
      REQUIRE(kv_.append(s, 0) == kv_.size(s));
      const std::vector<int> numbers = append(s, n);
      std::vector<std::int32_t> all(static_cast<std::size_t>(n));
      std::iota(all.begin(), all.end(), 0);
      REQUIRE(kv_.commit(s, all) == n);
      rows(s).insert(rows(s).end(), numbers.begin(), numbers.end());
      REQUIRE(holds());
    }
  }

  void nothing_changes_nothing(std::int32_t s) {
    append(s, 4);
    REQUIRE(kv_.commit(s, {}) == 0);
    REQUIRE(holds());
    REQUIRE(kv_.append(s, 0) == kv_.size(s));  // the scratch is gone
  }

  void full(std::int32_t s) {
    const std::int32_t left = kv_.capacity() - kv_.size(s);
    REQUIRE(kv_.append(s, left + 1) == -1);
    REQUIRE(kv_.append(s, left) == kv_.size(s));
    REQUIRE(kv_.append(s, 1) == -1);
    REQUIRE(kv_.append(s, 0) == kv_.capacity());
    REQUIRE(kv_.append(s, -1) == -1);
    kv_.truncate(s, kv_.capacity());  // beyond size: drops scratch alone
    REQUIRE(holds());
    REQUIRE(kv_.append(s, 1) == kv_.size(s));
    REQUIRE(kv_.commit(s, {}) == 0);
  }

  void truncates(std::int32_t s) {
    append(s, 2);
    kv_.truncate(s, 4);
    rows(s).resize(4);
    REQUIRE(holds());
    REQUIRE(kv_.append(s, 0) == 4);
    kv_.truncate(s, -1);
    rows(s).clear();
    REQUIRE(holds());
  }

  void refuses(std::int32_t s) {
    const auto message = [&](std::vector<std::int32_t> kept) {
      return message_of<espalier::input_error>([&] { kv_.commit(s, kept); });
    };
    append(s, 3);
    CHECK(says(message({3}), "row 3", "0 and 2"));
    CHECK(says(message({-1}), "row -1"));
    CHECK(says(message({1, 1}), "row 1"));
    CHECK(says(message({0, 2, 1}), "row 1"));
    CHECK(holds());
    kv_.truncate(s, kv_.size(s));
    for (const std::int32_t bad : {-1, n_sequences_})
      CHECK(says(message_of<espalier::input_error>([&] { kv_.size(bad); }), "sequence " + std::to_string(bad)));
  }

  // Against a list of numbers a sequence: appends in several parts, any ascending choice kept, truncations.
  void random_operations() {
    std::mt19937 random(5);
    std::vector<std::vector<int>> scratch(static_cast<std::size_t>(n_sequences_));
    int dropped = 0;
    for (int step = 0; step < 2000; ++step) {
      const auto s = static_cast<std::int32_t>(random() % static_cast<unsigned>(n_sequences_));
      std::vector<int>& open = scratch[static_cast<std::size_t>(s)];
      const auto used = static_cast<std::int32_t>(rows(s).size() + open.size());
      const unsigned what = random() % 8;
      if (what < 4) {
        const auto n = static_cast<std::int32_t>(random() % 5);
        if (used + n > kv_.capacity()) {
          REQUIRE(kv_.append(s, n) == -1);
        } else {
          const std::vector<int> numbers = append(s, n);
          open.insert(open.end(), numbers.begin(), numbers.end());
        }
      } else if (what < 7) {
        std::vector<std::int32_t> kept;
        for (std::size_t i = 0; i < open.size(); ++i) {
          if (random() % 3 != 0) kept.push_back(static_cast<std::int32_t>(i));
        }
        std::size_t n = kept.size();
        if (!kv_.compacts()) {
          n = 0;
          while (n < kept.size() && kept[n] == static_cast<std::int32_t>(n))
            ++n;
        }
        dropped += static_cast<int>(kept.size() - n);
        REQUIRE(kv_.commit(s, kept) == static_cast<std::int32_t>(n));
        for (std::size_t i = 0; i < n; ++i)
          rows(s).push_back(open[static_cast<std::size_t>(kept[i])]);
        open.clear();
      } else {
        const auto n = static_cast<std::int32_t>(random() % static_cast<unsigned>(kv_.capacity()));
        kv_.truncate(s, n);
        rows(s).resize(std::min(rows(s).size(), static_cast<std::size_t>(n)));
        open.clear();
      }
      REQUIRE(holds());
    }
    REQUIRE((dropped > 0) == !kv_.compacts());
  }

  KVStoreT& kv_;
  std::int32_t n_sequences_;
  AccessT access_;
  std::vector<std::vector<int>> expected_;
  int next_number_ = 1;
};
