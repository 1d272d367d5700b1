// SPDX-License-Identifier: BSL-1.0
// Tested by tests/kv_store/contiguous.cpp
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/token.hpp"
#include "espalier/kv_store/memory/kv_shape.hpp"
#include "espalier/kv_store/token_ledger.hpp"

namespace espalier {

//! The way in which a commit treats accepted rows that do not directly follow the committed rows in the cache.
enum class commit_mode {
  compact,   //!< moves them together, in place
  truncate,  //!< drops them; their tokens are forwarded again with the next round's tree
};

template <>
inline constexpr auto known_values<commit_mode> = std::array{
    known_value<commit_mode>{commit_mode::compact, "compact", "move accepted cache rows together"},
    known_value<commit_mode>{commit_mode::truncate, "truncate", "forward accepted tokens again in the next round"}};

//! The bookkeeping of a KV store: which slots of each sequence are committed and which are scratch. It does not hold
//! the rows.
//!
//! Complexity  commit: O(kept), one call of `move` for each row that changes its slot
//! Law         moves go from higher to lower slots in ascending order, so that they may be done in place
//! Errors      option_error for a capacity or number of sequences out of range; input_error for a sequence that does
//!             not exist or for kept rows that do not ascend within scratch
//! Source      DDTree (in-place compaction); DynaTree, section 3.5 (rollback)
class slot_ledger {
 public:
  slot_ledger(std::int32_t n_sequences, std::int32_t capacity, commit_mode mode) : capacity_(capacity), mode_(mode) {
    require_option("number of sequences", n_sequences, 1, 1 << 20);
    require_option("cache capacity", capacity, 1, 1 << 30);
    committed_.resize(static_cast<std::size_t>(n_sequences), 0);
    scratch_.resize(static_cast<std::size_t>(n_sequences), 0);
    tokens_ = token_ledger(n_sequences, capacity);
  }

  //! Number of bytes that a ledger of one sequence takes of an arena.
  static constexpr std::size_t bytes(const static_capacity& c) {
    return 2 * arena::bytes_of<std::int32_t>(1) + token_ledger::bytes(c);
  }

  std::int32_t size(std::int32_t sequence) const { return committed_[checked(sequence)]; }
  std::int32_t capacity() const { return capacity_; }
  std::int32_t n_sequences() const { return static_cast<std::int32_t>(committed_.size()); }
  bool compacts() const { return mode_ == commit_mode::compact; }

  std::int32_t append(std::int32_t sequence, std::int32_t n) {
    const std::size_t s = checked(sequence);
    const std::int32_t first = committed_[s] + scratch_[s];
    if (n < 0 || n > capacity_ - first) return -1;
    scratch_[s] += n;
    return first;
  }

  //! Number of scratch slots of a sequence: those of this round, after the committed ones.
  std::int32_t n_scratch(std::int32_t sequence) const { return scratch_[checked(sequence)]; }

  //! Checks kept rows as commit() does, and changes nothing.
  void require_kept(std::int32_t sequence, std::span<const std::int32_t> kept) const {
    const std::size_t s = checked(sequence);
    std::int32_t previous = -1;
    for (const std::int32_t row : kept) {
      if (row <= previous || row >= scratch_[s]) {
        raise<input_error>("scratch row ", row, " cannot be kept: kept rows ascend and lie between 0 and ",
                           scratch_[s] - 1, ".");
      }
      previous = row;
    }
  }

  //! Commits the kept scratch rows; the other scratch rows are dropped. Returns how many were committed: all, or, with
  //! commit_mode::truncate, those that directly follow the committed ones. `kept`: numbers of scratch slots, counted
  //! from 0. move(from, to) must move one row of the sequence between two slots.
  template <class MoveT>
  std::int32_t commit(std::int32_t sequence, std::span<const std::int32_t> kept, const MoveT& move) {
    require_kept(sequence, kept);
    const std::size_t s = checked(sequence);
    const std::int32_t base = committed_[s];
    std::int32_t n = 0;
    for (const std::int32_t row : kept) {
      if (row != n) {
        if (!compacts()) break;
        move(base + row, base + n);
      }
      ++n;
    }
    committed_[s] += n;
    scratch_[s] = 0;
    return n;
  }

  void truncate(std::int32_t sequence, std::int32_t n) {
    const std::size_t s = checked(sequence);
    scratch_[s] = 0;
    if (n < committed_[s]) committed_[s] = n < 0 ? 0 : n;
    tokens_.truncate(sequence, committed_[s]);
  }

  //! Makes the sequence have n committed rows and no scratch. `tokens` are those of its leading rows; the tokens of the
  //! other rows are unknown.
  //!
  //! Pre         at most n tokens, which are no part of prefix(sequence); n <= capacity()
  void hold(std::int32_t sequence, std::int32_t n, std::span<const token_id> tokens) {
    const std::size_t s = checked(sequence);
    committed_[s] = n;
    scratch_[s] = 0;
    tokens_.remember(sequence, 0, tokens);
  }

  //! The tokens of the committed rows, as far as they are known.
  std::span<const token_id> prefix(std::int32_t sequence) const { return tokens_.prefix(sequence); }
  std::uint64_t version(std::int32_t sequence) const { return tokens_.version(sequence); }
  void remember(std::int32_t sequence, std::int32_t first, std::span<const token_id> tokens) {
    const std::int64_t end = first + static_cast<std::int64_t>(tokens.size());
    if (first < 0 || end > size(sequence)) {
      raise<input_error>("sequence ", sequence, " of the cache holds ", size(sequence), " rows, not rows ", first,
                         " to ", end - 1, ".");
    }
    tokens_.remember(sequence, first, tokens);
  }

 private:
  std::size_t checked(std::int32_t sequence) const { return detail::require_sequence(sequence, committed_.size()); }

  std::int32_t capacity_;
  commit_mode mode_;
  detail::list<std::int32_t> committed_;
  detail::list<std::int32_t> scratch_;
  token_ledger tokens_{0, 0};
};

}  // namespace espalier
