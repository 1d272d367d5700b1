// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/testing/law_error.hpp"
#include "espalier/testing/sharing_kv_store_laws.hpp"

namespace espalier::testing {

namespace detail {

template <class KVStoreT, class AccessT>
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
      if constexpr (PrefixKVStore<KVStoreT>) remembers(s);
    }
    random_operations();
    for (std::int32_t s = 0; s < n_sequences_; ++s)
      kv_.truncate(s, 0);
    if constexpr (SharingKVStore<KVStoreT>) check_sharing_kv_store(kv_, n_sequences_, access_);
  }

 private:
  static constexpr bool keeps_paths = requires { requires AccessT::keeps_paths; };

  std::vector<int>& rows(std::int32_t s) { return expected_[static_cast<std::size_t>(s)]; }

  // Checks that all committed rows of all sequences hold the numbers written into them.
  void require_rows(const char* after) {
    for (std::int32_t s = 0; s < n_sequences_; ++s) {
      const auto n = static_cast<std::int32_t>(rows(s).size());
      require_law(kv_.size(s) == n, "after ", after, " size(", s, ") is ", kv_.size(s), ", but ", n,
                  " rows are committed.");
      for (std::int32_t i = 0; i < n; ++i) {
        require_law(access_.read(kv_, s, i) == rows(s)[static_cast<std::size_t>(i)], "after ", after, " slot ", i,
                    " of sequence ", s, " does not hold what was written into it.");
      }
    }
  }

  void require_append(std::int32_t s, std::int32_t n, std::int32_t expected) {
    const std::int32_t slot = kv_.append(s, n);
    require_law(slot == expected, "append(", s, ", ", n, ") is ", slot, ", but should be ", expected, ": ", kv_.size(s),
                " rows are committed, the capacity is ", kv_.capacity(), ".");
  }

  void require_commit(std::int32_t s, std::span<const std::int32_t> kept, std::size_t expected) {
    const std::int32_t n = kv_.commit(s, kept);
    require_law(n == static_cast<std::int32_t>(expected), "commit of ", kept.size(), " rows of sequence ", s, " keeps ",
                n, ", but should keep ", expected, ".");
  }

  std::vector<int> append(std::int32_t s, std::int32_t n) {
    const std::int32_t first = kv_.append(s, n);
    require_law(first >= 0, "append(", s, ", ", n, ") finds no room where there should be some.");
    std::vector<int> numbers;
    for (std::int32_t i = 0; i < n; ++i) {
      numbers.push_back(next_number_++);
      access_.write(kv_, s, first + i, numbers.back());
    }
    return numbers;
  }

  void chain_equals_plain_appending(std::int32_t s) {
    kv_.truncate(s, 0);
    rows(s).clear();
    for (const std::int32_t n : {1, 3, 2}) {
      require_append(s, 0, kv_.size(s));
      const std::vector<int> numbers = append(s, n);
      std::vector<std::int32_t> all(static_cast<std::size_t>(n));
      std::iota(all.begin(), all.end(), 0);
      require_commit(s, all, all.size());
      rows(s).insert(rows(s).end(), numbers.begin(), numbers.end());
      require_rows("a commit of all rows");
    }
  }

  void nothing_changes_nothing(std::int32_t s) {
    append(s, 4);
    require_commit(s, {}, 0);
    require_rows("a commit of nothing");
    require_append(s, 0, kv_.size(s));  // no scratch is left
  }

  void full(std::int32_t s) {
    const std::int32_t left = kv_.capacity() - kv_.size(s);
    require_append(s, left + 1, -1);
    require_append(s, left, kv_.size(s));
    require_append(s, 1, -1);
    require_append(s, 0, kv_.capacity());
    require_append(s, -1, -1);
    kv_.truncate(s, kv_.capacity());  // beyond size(): drops only scratch
    require_rows("a truncation beyond size()");
    require_append(s, 1, kv_.size(s));
    require_commit(s, {}, 0);
  }

  void truncates(std::int32_t s) {
    append(s, 2);
    kv_.truncate(s, 4);
    rows(s).resize(4);
    require_rows("a truncation");
    require_append(s, 0, 4);
    kv_.truncate(s, -1);
    rows(s).clear();
    require_rows("a truncation to less than nothing");
  }

  template <class CallT>
  void require_refused([[maybe_unused]] const char* what, [[maybe_unused]] const CallT& call,
                       [[maybe_unused]] const std::string& named) {
#if ESPALIER_EXCEPTIONS
    std::string message;
    try {
      call();
    } catch (const input_error& e) {
      message = e.what();
    }
    require_law(message.find(named) != std::string::npos, what, " must be an input_error that says \"", named,
                "\"; it says \"", message, "\".");
#endif
  }

  void refuses(std::int32_t s) {
    append(s, 3);
    const auto commit = [&](std::vector<std::int32_t> kept) { return [this, s, kept] { kv_.commit(s, kept); }; };
    require_refused("a commit of row 3 of 3", commit({3}), "row 3");
    require_refused("a commit of row -1", commit({-1}), "row -1");
    require_refused("a commit of row 1 twice", commit({1, 1}), "row 1");
    require_refused("a commit of rows 0, 2, 1", commit({0, 2, 1}), "row 1");
    require_rows("a commit that is refused");
    kv_.truncate(s, kv_.size(s));
    for (const std::int32_t bad : {-1, n_sequences_})
      require_refused(
          "size() of no sequence", [&] { kv_.size(bad); }, "sequence " + std::to_string(bad));
  }

  void remembers(std::int32_t s) {
    kv_.truncate(s, 0);
    rows(s) = append(s, 3);
    require_commit(s, std::vector<std::int32_t>{0, 1, 2}, 3);
    std::uint64_t version = kv_.version(s);
    const auto require_prefix = [&](const std::vector<token_id>& expected, const char* after) {
      const std::span<const token_id> prefix = kv_.prefix(s);
      require_law(std::equal(prefix.begin(), prefix.end(), expected.begin(), expected.end()), "after ", after,
                  " prefix(", s, ") has ", prefix.size(), " tokens, and should have ", expected.size(),
                  ", those that the rows are of.");
      require_law(kv_.version(s) != version, "version(", s, ") is as it was before ", after, ", but prefix() is not.");
      version = kv_.version(s);
    };
    kv_.remember(s, 0, std::vector<token_id>{5, 6, 7});
    require_prefix({5, 6, 7}, "remember()");
    append(s, 2);
    require_commit(s, {}, 0);
    require_law(kv_.version(s) == version, "version(", s, ") has changed, but prefix() has not.");
    kv_.truncate(s, 2);
    rows(s).resize(2);
    require_prefix({5, 6}, "a truncation");
    kv_.remember(s, 1, std::vector<token_id>{9});
    require_prefix({5, 9}, "a second remember()");
    kv_.truncate(s, 0);
    rows(s).clear();
    require_prefix({}, "a truncation to nothing");
  }

  // Compares the store with a list of numbers for each sequence: appends in several parts, any ascending choice kept,
  // truncations.
  void random_operations() {
    std::mt19937 random(5);
    std::vector<std::vector<int>> scratch(static_cast<std::size_t>(n_sequences_));
    std::size_t dropped = 0;
    for (int step = 0; step < 2000; ++step) {
      const auto s = static_cast<std::int32_t>(random() % static_cast<unsigned>(n_sequences_));
      std::vector<int>& open = scratch[static_cast<std::size_t>(s)];
      const auto used = static_cast<std::int32_t>(rows(s).size() + open.size());
      const unsigned what = random() % 8;
      if (what < 4) {
        const auto n = static_cast<std::int32_t>(random() % 5);
        if (used + n > kv_.capacity()) {
          require_append(s, n, -1);
        } else {
          const std::vector<int> numbers = append(s, n);
          open.insert(open.end(), numbers.begin(), numbers.end());
        }
      } else if (what < 7) {
        std::vector<std::int32_t> kept;
        const std::size_t end = keeps_paths ? random() % (open.size() + 1) : open.size();
        for (std::size_t i = 0; i < end; ++i) {
          if (keeps_paths || random() % 3 != 0) kept.push_back(static_cast<std::int32_t>(i));
        }
        std::size_t n = kept.size();
        if (!kv_.compacts()) {
          n = 0;
          while (n < kept.size() && kept[n] == static_cast<std::int32_t>(n))
            ++n;
        }
        dropped += kept.size() - n;
        require_commit(s, kept, n);
        for (std::size_t i = 0; i < n; ++i)
          rows(s).push_back(open[static_cast<std::size_t>(kept[i])]);
        open.clear();
      } else {
        const auto n = static_cast<std::int32_t>(random() % static_cast<unsigned>(kv_.capacity()));
        kv_.truncate(s, n);
        rows(s).resize((std::min)(rows(s).size(), static_cast<std::size_t>(n)));
        open.clear();
      }
      require_rows("random operations");
    }
    require_law((dropped > 0) == !kv_.compacts(), "compacts() is ", kv_.compacts(), ", but ", dropped,
                " accepted rows were dropped.");
  }

  KVStoreT& kv_;
  std::int32_t n_sequences_;
  AccessT access_;
  std::vector<std::vector<int>> expected_;
  int next_number_ = 1;
};

}  // namespace detail

//! Checks the laws of KVStore: the rows that commits keep and truncations leave, the answers of a full store, and that
//! sequences do not influence each other. Also checks those of PrefixKVStore and SharingKVStore if the store is one.
//!
//! AccessT writes a number into a row, committed or scratch, and reads it back; -1 for a row that no write() has left:
//!   access.write(kv, sequence, slot, number)
//!   access.read(kv, sequence, slot) -> number
//! If it has `static constexpr bool keeps_paths = true`, each row that it writes follows the one before it, and a
//! commit keeps the beginning of such a chain: for stores that keep only paths, see KVStore.
//!
//! Pre         a capacity of 16 rows or more a sequence, and no rows that must be kept
//! Errors      law_error with what is wrong
template <KVStore KVStoreT, class AccessT>
void check_kv_store(KVStoreT& kv, std::int32_t n_sequences, AccessT access) {
  detail::kv_store_laws<KVStoreT, AccessT>(kv, n_sequences, access).check();
}

}  // namespace espalier::testing
