// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/testing/law_error.hpp"

namespace espalier::testing {

namespace detail {

template <class KVStoreT, class AccessT>
class windowed_kv_store_laws {
 public:
  windowed_kv_store_laws(KVStoreT& kv, std::int32_t n_sequences, AccessT access)
      : kv_(kv), n_sequences_(n_sequences), access_(access), texts_(static_cast<std::size_t>(n_sequences)) {}

  void check() {
    learn_windows();
    random_operations();
    for (std::int32_t s = 0; s < n_sequences_; ++s)
      kv_.truncate(s, 0);
  }

 private:
  // The rows that a sequence holds once a given number of rows is committed.
  struct window {
    std::vector<std::int32_t> rows;  // index of each row in the text
    std::int32_t until_slide = 0;
    bool has_slid = false;  // true if the window slid when the last of these rows was committed
  };

  std::vector<int>& text(std::int32_t s) { return texts_[static_cast<std::size_t>(s)]; }
  const window& at(std::size_t n_rows) const { return windows_[n_rows]; }

  void append(std::int32_t s, std::int32_t n, std::vector<int>& numbers) {
    const std::int32_t slot = kv_.append(s, n), expected = kv_.held(s) + static_cast<std::int32_t>(numbers.size());
    require_law(slot == expected, "append(", s, ", ", n, ") is ", slot, ", but should be ", expected, ": ", kv_.held(s),
                " rows are held, ", kv_.until_slide(s), " may be committed, and there are ", kv_.scratch(),
                " for scratch.");
    for (std::int32_t i = 0; i < n; ++i) {
      numbers.push_back(++last_number_);
      access_.write(kv_, s, slot + i, last_number_);
    }
  }

  // Appends and commits one row at a time until the window has slid five times, and notes after each row which rows are
  // held. A text of as many rows must later hold the same rows, in whatever portions they are appended.
  void learn_windows() {
    kv_.truncate(0, 0);
    require_law(kv_.size(0) == 0 && kv_.held(0) == 0, "after a truncation to nothing rows are held.");
    windows_.push_back({{}, kv_.until_slide(0), false});
    const std::vector<std::int32_t> first{0};
    for (int n_slides = 0; n_slides < 5;) {
      const window before = windows_.back();
      require_law(before.until_slide > 0, "until_slide() is ", before.until_slide, " after ", kv_.size(0),
                  " rows, but must be 1 or more.");
      std::vector<int> number;
      append(0, 1, number);
      const std::int32_t n_kept = kv_.commit(0, first);
      require_law(n_kept == 1, "commit keeps ", n_kept, " of one row.");
      text(0).push_back(number[0]);
      window now{before.rows, kv_.until_slide(0), before.until_slide == 1};
      now.rows.push_back(static_cast<std::int32_t>(text(0).size()) - 1);
      if (now.has_slid) {
        ++n_slides;
        keep_held(now.rows);
      } else {
        require_law(now.until_slide == before.until_slide - 1, "until_slide() is ", now.until_slide, " after ",
                    kv_.size(0), " rows, and was ", before.until_slide, " before the last.");
      }
      windows_.push_back(now);
      require_rows("a commit of one row");
    }
  }

  // Removes from `rows`, which are indices in the text of sequence 0, those of rows that no slot holds. Checks that the
  // slots hold the rows that remain, in their order.
  void keep_held(std::vector<std::int32_t>& rows) {
    std::size_t n = 0;
    for (const std::int32_t row : rows) {
      const bool is_held = static_cast<std::int32_t>(n) < kv_.held(0) &&
                           access_.read(kv_, 0, static_cast<std::int32_t>(n)) == text(0)[static_cast<std::size_t>(row)];
      if (is_held) rows[n++] = row;
    }
    require_law(static_cast<std::int32_t>(n) == kv_.held(0) && n < rows.size(), "after a slide ", kv_.held(0),
                " rows are held, of which ", n, " are some of the ", rows.size(), " before it, in their order.");
    rows.resize(n);
  }

  void require_rows(const char* after) {
    for (std::int32_t s = 0; s < n_sequences_; ++s) {
      const std::size_t n = text(s).size();
      require_law(kv_.size(s) == static_cast<std::int32_t>(n), "after ", after, " size(", s, ") is ", kv_.size(s),
                  ", but ", n, " rows are committed.");
      const window& w = at(n);
      require_law(kv_.held(s) == static_cast<std::int32_t>(w.rows.size()) && kv_.until_slide(s) == w.until_slide,
                  "after ", after, " sequence ", s, " holds ", kv_.held(s), " of ", n, " rows and slides after ",
                  kv_.until_slide(s), "; row by row it held ", w.rows.size(), " and slid after ", w.until_slide, ".");
      for (std::size_t i = 0; i < w.rows.size(); ++i) {
        require_law(access_.read(kv_, s, static_cast<std::int32_t>(i)) == text(s)[static_cast<std::size_t>(w.rows[i])],
                    "after ", after, " slot ", i, " of sequence ", s, " does not hold row ", w.rows[i], ".");
      }
    }
  }

  void truncate(std::int32_t s, std::size_t n) {
    kv_.truncate(s, static_cast<std::int32_t>(n));
    if (n >= text(s).size()) return;
    bool is_gone = false;
    for (std::size_t i = n + 1; i <= text(s).size(); ++i)
      is_gone = is_gone || at(i).has_slid;
    text(s).resize(is_gone ? 0 : n);
  }

  // Runs random operations on texts of up to as many rows as the windows are known for: appends of any number of rows,
  // commits of any of them, truncations.
  void random_operations() {
    std::mt19937 random(5);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random()) % n; };
    std::vector<std::vector<int>> scratch(texts_.size());
    for (int step = 0; step < 3000; ++step) {
      const auto s = static_cast<std::int32_t>(below(texts_.size()));
      std::vector<int>& open = scratch[static_cast<std::size_t>(s)];
      const auto most = static_cast<std::size_t>(kv_.until_slide(s));
      const std::size_t what = below(16);
      if (what < 7) {
        const std::size_t room = most + static_cast<std::size_t>(kv_.scratch()) - open.size();
        append(s, static_cast<std::int32_t>((std::min)(below(6), room)), open);
      } else if (what < 15) {
        std::vector<std::int32_t> kept;
        for (std::size_t i = 0; i < open.size(); ++i) {
          if (below(5) != 0) kept.push_back(static_cast<std::int32_t>(i));
        }
        std::size_t n = 0;
        while (n < kept.size() && n < most && (kv_.compacts() || kept[n] == static_cast<std::int32_t>(n)))
          ++n;
        const auto given = static_cast<std::size_t>(kv_.commit(s, kept));
        require_law(given == n, "commit of ", kept.size(), " rows of sequence ", s, ", whose window slides after ",
                    most, ", keeps ", given, ", but should keep ", n, ".");
        for (std::size_t i = 0; i < n; ++i)
          text(s).push_back(open[static_cast<std::size_t>(kept[i])]);
        open.clear();
      } else {
        truncate(s, text(s).size() - (std::min)(text(s).size(), below(3) == 0 ? below(40) : below(3)));
        open.clear();
      }
      if (text(s).size() + most + 1 >= windows_.size()) {
        truncate(s, 0);
        open.clear();
      }
      require_rows("random operations");
    }
  }

  KVStoreT& kv_;
  std::int32_t n_sequences_;
  AccessT access_;
  std::vector<std::vector<int>> texts_;  // the number written into each committed row, dropped ones included
  std::vector<window> windows_;          // by number of committed rows
  int last_number_ = 0;
};

}  // namespace detail

//! Checks the laws of WindowedKVStore: that the rows held do not depend on the portions in which they came, and which
//! rows commits keep and truncations leave.
//!
//! AccessT is as for check_kv_store.
//!
//! Pre         a window that slides every few dozens of rows, and no rows that must be kept: the check drops all rows
//! Errors      law_error with what is wrong
template <WindowedKVStore KVStoreT, class AccessT>
void check_windowed_kv_store(KVStoreT& kv, std::int32_t n_sequences, AccessT access) {
  detail::windowed_kv_store_laws<KVStoreT, AccessT>(kv, n_sequences, access).check();
}

}  // namespace espalier::testing
