// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/concepts/recurrent_store.hpp"
#include "espalier/core/token.hpp"
#include "espalier/testing/law_error.hpp"

namespace espalier::testing {

namespace detail {

template <class StoreT, class AccessT>
class recurrent_store_laws {
 public:
  recurrent_store_laws(StoreT& kv, std::int32_t n_sequences, AccessT access)
      : kv_(kv), access_(access), texts_(static_cast<std::size_t>(n_sequences)) {}

  void check() {
    for (int i = 0; i < 4000; ++i)
      step(static_cast<std::int32_t>(below(texts_.size())));
    require_law(n_kept_ > 0 && n_lost_ > 0 && n_full_ > 0 && n_branched_ > 0,
                "4000 random operations never kept a state, or never lost one, or never filled the store: rows are ",
                kv_.most_rows(), ", and should be 16 to 40.");
    require_law(!shares || n_adopted_ > 0, "4000 random operations never adopted the beginning of another text.");
    for (std::size_t s = 0; s < texts_.size(); ++s)
      kv_.truncate(static_cast<std::int32_t>(s), 0);
  }

 private:
  static constexpr bool shares = SharingKVStore<StoreT>;

  struct text {
    std::vector<int> rows;     // the number that was written into each committed row
    std::vector<int> scratch;  // the number that was written into each scratch row
  };

  std::size_t below(std::size_t n) { return random_() % n; }
  text& of(std::int32_t s) { return texts_[static_cast<std::size_t>(s)]; }

  // The number that stands for the state after a path. Different paths almost always have different numbers.
  static int state_of(std::span<const int> path) {
    std::uint32_t state = 0;
    for (const int number : path)
      state = state * 31 + static_cast<std::uint32_t>(number);
    return static_cast<int>(state % 1000003) + 1;
  }

  void step(std::int32_t s) {
    switch (below(shares ? 10 : 8)) {
      case 0:
      case 1:
      case 2:
        append(s, static_cast<std::int32_t>(below(7)));
        break;
      case 3:
        pass(s);
        break;
      case 4:
      case 5:
      case 6:
        commit(s);
        break;
      case 8:
        if constexpr (shares) fork(static_cast<std::int32_t>(below(texts_.size())), s);
        break;
      case 9:
        if constexpr (shares) adopt(s);
        break;
      default:
        truncate(
            s, static_cast<std::int32_t>(below(3) == 0 ? below(of(s).rows.size() + 2)
                                                       : of(s).rows.size() - (std::min)(of(s).rows.size(), below(3))));
    }
    for (std::size_t other = 0; other < texts_.size(); ++other)
      require_states(static_cast<std::int32_t>(other));
  }

  void append(std::int32_t s, std::int32_t n) {
    text& t = of(s);
    const auto used = static_cast<std::int32_t>(t.rows.size() + t.scratch.size());
    const std::int32_t since = used + n - kv_.state_at(s, kv_.size(s));
    const bool fits = used + n <= kv_.capacity() && since <= kv_.most_rows();
    const std::int32_t slot = kv_.append(s, n);
    require_law(slot == (fits ? used : -1), "append(", s, ", ", n, ") is ", slot, " where ", used,
                " slots are taken and there would be ", since, " rows after the latest state.");
    n_full_ += fits ? 0 : 1;
    if (!fits) return truncate(s, 0);
    for (std::int32_t i = 0; i < n; ++i) {
      t.scratch.push_back(++last_number_);
      access_.write_row(kv_, s, slot + i, last_number_);
      kv_.set_parent(s, slot + i, slot + i - 1);
      require_law(kv_.parent(s, slot + i) == slot + i - 1, "parent() is not what set_parent said.");
    }
  }

  // Acts as a pass that begins at the latest state of the committed rows, and reads the committed rows after it and
  // some scratch rows, which are a chain.
  void pass(std::int32_t s) {
    text& t = of(s);
    const std::int32_t from = kv_.state_at(s, kv_.size(s));
    std::vector<int> path = t.rows;
    path.insert(path.end(), t.scratch.begin(), t.scratch.end());
    const auto n = static_cast<std::int32_t>(static_cast<std::size_t>(from) +
                                             below(path.size() - static_cast<std::size_t>(from) + 1));
    if (n == 0 || n < static_cast<std::int32_t>(t.rows.size())) return;
    if (n != from) access_.write_state(kv_, s, from, state_of(std::span(path).first(static_cast<std::size_t>(n))));
    kv_.hold_state(s, from, n);
    require_law(kv_.state_at(s, n) == n && kv_.state_at(s, from) == from, "after hold_state(", s, ", ", from, ", ", n,
                ") not both states are held.");
    require_law(n == from || kv_.state_at(s, n - 1) <= from, "after hold_state a third state is held.");
  }

  void commit(std::int32_t s) {
    text& t = of(s);
    std::vector<std::int32_t> kept;
    const bool branches = below(2) == 0;
    for (std::size_t i = 0; i < t.scratch.size(); ++i)
      if (!branches || below(3) > 0) kept.push_back(static_cast<std::int32_t>(i));
    std::size_t same = 0;
    while (same < kept.size() && kept[same] == static_cast<std::int32_t>(same))
      ++same;
    const std::size_t n = kv_.compacts() ? kept.size() : same;
    n_branched_ += same < kept.size() ? 1 : 0;
    const std::int32_t most = kv_.state_at(s, static_cast<std::int32_t>(t.rows.size() + same));
    require_law(kv_.commit(s, kept) == static_cast<std::int32_t>(n), "commit does not keep what it should.");
    const auto first = static_cast<std::int32_t>(t.rows.size());
    for (std::size_t i = 0; i < n; ++i)
      t.rows.push_back(t.scratch[static_cast<std::size_t>(kept[i])]);
    if constexpr (PrefixKVStore<StoreT>)
      kv_.remember(s, first, std::span<const token_id>(t.rows).subspan(static_cast<std::size_t>(first)));
    t.scratch.clear();
    const std::int32_t latest = kv_.state_at(s, kv_.capacity());
    require_law(latest == most, "after a commit that keeps the first ", same,
                " of its rows in their places the latest ", "state is after ", latest, " slots, but was after ", most,
                " of those that stay.");
    n_kept_ += latest > 0 ? 1 : 0;
  }

  void truncate(std::int32_t s, std::int32_t n) {
    text& t = of(s);
    n = (std::min)(n, static_cast<std::int32_t>(t.rows.size()));
    const bool goes_back = n < static_cast<std::int32_t>(t.rows.size());
    const std::int32_t state = kv_.state_at(s, n);
    const bool can = !goes_back || (state >= 0 && n - state <= kv_.most_rows() / 2);
    n_lost_ += can ? 0 : 1;
    if (goes_back && (!can || n == 0)) given_up_ = t.rows;
    kv_.truncate(s, n);
    t.rows.resize(can ? static_cast<std::size_t>(n) : 0);
    t.scratch.clear();
  }

  void fork(std::int32_t from, std::int32_t to) {
    kv_.fork(from, to);
    of(to) = {of(from).rows, {}};
    const std::int32_t n = kv_.size(from);
    require_law(kv_.state_at(to, kv_.capacity()) == kv_.state_at(from, n), "after fork(", from, ", ", to,
                ") the latest state of ", to, " is not that of the committed rows of ", from, ".");
  }

  // Adopts the beginning of a text that was given up, or of one that another sequence holds.
  void adopt(std::int32_t s) {
    std::vector<int> tokens = below(2) == 0 ? given_up_ : texts_[below(texts_.size())].rows;
    if (below(2) == 0) tokens.push_back(++last_number_);
    const std::vector<int>& held = of(s).rows;
    const auto same = std::mismatch(held.begin(), held.end(), tokens.begin(), tokens.end()).first - held.begin();
    const std::int32_t own = rows_after_truncate(kv_, s, static_cast<std::int32_t>(same));
    if (own < static_cast<std::int32_t>(held.size()) && own == 0) given_up_ = held;
    const std::int32_t n = kv_.adopt(s, tokens);
    require_law(n >= own && n <= static_cast<std::int32_t>(tokens.size()), "adopt(", s, ", ", tokens.size(),
                " tokens) is ", n, ", but the sequence could keep ", own, " rows.");
    require_law(n == own || kv_.state_at(s, n) == n, "adopt(", s, ") found ", n, " rows, but no state after them.");
    n_adopted_ += n > own ? 1 : 0;
    tokens.resize(static_cast<std::size_t>(n));
    of(s) = {std::move(tokens), {}};
  }

  // Checks that each state that is held is the one of its rows, and that the rows after it are there.
  void require_states(std::int32_t s) {
    const text& t = of(s);
    require_law(kv_.size(s) == static_cast<std::int32_t>(t.rows.size()), "size(", s, ") is ", kv_.size(s), ", but ",
                t.rows.size(), " rows are committed.");
    std::vector<int> path = t.rows;
    path.insert(path.end(), t.scratch.begin(), t.scratch.end());
    require_law(kv_.state_at(s, kv_.size(s)) >= 0, "no state is held at or before the committed rows of sequence ", s,
                ".");
    std::int32_t first = -1;
    for (std::int32_t n = kv_.state_at(s, static_cast<std::int32_t>(path.size())); n >= 0; n = kv_.state_at(s, n - 1)) {
      first = n;
      if (n == 0) break;
      require_law(access_.read_state(kv_, s, n) == state_of(std::span(path).first(static_cast<std::size_t>(n))),
                  "the state after ", n, " slots of sequence ", s, " is not that of its rows.");
    }
    for (auto slot = static_cast<std::size_t>(first); slot < path.size(); ++slot) {
      require_law(access_.read_row(kv_, s, static_cast<std::int32_t>(slot)) == path[slot], "slot ", slot,
                  " of sequence ", s, ", after a state, does not hold what was written into it.");
    }
    for (std::int32_t slot = 0; slot < kv_.size(s); ++slot)
      require_law(kv_.parent(s, slot) == slot - 1, "the parent of a committed row is not the one before it.");
  }

  StoreT& kv_;
  AccessT access_;
  std::vector<text> texts_;
  std::mt19937 random_{11};
  int last_number_ = 0;
  int n_kept_ = 0, n_lost_ = 0, n_full_ = 0, n_branched_ = 0, n_adopted_ = 0;
  std::vector<int> given_up_;  // the last text that was given up
};

}  // namespace detail

//! Checks the laws of RecurrentStore: which states are held after passes, commits and truncations, that each is the
//! state of its rows, that the rows after it are there, and when there is no room for more. Of a SharingKVStore it also
//! checks the states that sequences fork and adopt.
//!
//! AccessT writes and reads one number for each row and one for each state:
//!   access.write_row(kv, sequence, slot, number)      access.read_row(kv, sequence, slot) -> number
//!   access.write_state(kv, sequence, from, number)    access.read_state(kv, sequence, n) -> number
//! read_state reads the state after n slots. write_state acts as a pass that begins at the state after `from` slots: it
//! writes the state that the pass leaves.
//!
//! Pre         most_rows() from 16 to 40, a larger capacity, in a SharingKVStore as many pages as all sequences can
//!             have, and no rows that must be kept: the check drops all rows
//! Errors      law_error with what is wrong
template <RecurrentStore StoreT, class AccessT>
void check_recurrent_store(StoreT& kv, std::int32_t n_sequences, AccessT access) {
  detail::recurrent_store_laws<StoreT, AccessT>(kv, n_sequences, access).check();
}

}  // namespace espalier::testing
