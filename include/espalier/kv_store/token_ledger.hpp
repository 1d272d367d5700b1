// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/token.hpp"
#include "espalier/kv_store/memory/kv_shape.hpp"

#if ESPALIER_HOSTED && !defined(__GNUC__)
#include <atomic>
#endif

namespace espalier {

//! The known tokens of the leading rows of each sequence of a store: see PrefixKVStore.
//!
//! Complexity  remember: O(tokens that are told); the first call for a sequence takes memory for `capacity` tokens
//! Errors      input_error for a sequence that does not exist
class token_ledger {
 public:
  token_ledger(std::int32_t n_sequences, std::int32_t capacity)
      : tokens_(static_cast<std::size_t>(n_sequences)),
        versions_(tokens_.size(), 0),
        capacity_(static_cast<std::size_t>(capacity)) {}

  //! Number of bytes that a ledger of one sequence takes of an arena.
  static constexpr std::size_t bytes(const static_capacity& c) {
    return arena::bytes_of<detail::list<token_id>>(1) + arena::bytes_of<std::uint64_t>(1) +
           arena::bytes_of<token_id>(static_cast<std::size_t>(c.context));
  }

  //! The known tokens of a sequence; valid until the sequence changes.
  std::span<const token_id> prefix(std::int32_t sequence) const { return tokens_[checked(sequence)]; }

  //! A number that changes whenever prefix() changes. Sequences with equal numbers have equal prefixes, in all ledgers
  //! of the process: no number is given twice, but a copy of a ledger has the numbers of its original, and 0 means that
  //! no token was ever told.
  std::uint64_t version(std::int32_t sequence) const { return versions_[checked(sequence)]; }

  //! Notes the tokens of the rows from number `first` on; the tokens of the rows after these are then unknown. Does
  //! nothing if the token of a row before `first` is unknown.
  //!
  //! Pre         tokens is no part of prefix()
  void remember(std::int32_t sequence, std::int32_t first, std::span<const token_id> tokens) {
    const std::size_t s = checked(sequence);
    tokens_[s].reserve(capacity_);
    if (static_cast<std::size_t>(first) > tokens_[s].size()) return;
    tokens_[s].resize(static_cast<std::size_t>(first));
    tokens_[s].insert(tokens_[s].end(), tokens.begin(), tokens.end());
    versions_[s] = next_version();
  }

  //! Forgets the tokens of the rows from number n on.
  //!
  //! Pre         n >= 0
  void truncate(std::int32_t sequence, std::int32_t n) {
    const std::size_t s = checked(sequence);
    if (static_cast<std::size_t>(n) >= tokens_[s].size()) return;
    tokens_[s].resize(static_cast<std::size_t>(n));
    versions_[s] = next_version();
  }

 private:
  std::size_t checked(std::int32_t sequence) const { return detail::require_sequence(sequence, tokens_.size()); }

  static std::uint64_t next_version() {
#if ESPALIER_HOSTED && defined(__GNUC__)  // g++ and clang, for which <atomic> takes 0.2 s to parse
    static std::size_t last = 0;
    return __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
#elif ESPALIER_HOSTED
    static std::atomic<std::size_t> last{0};
    return ++last;
#else
    static std::size_t last = 0;
    return ++last;
#endif
  }

  detail::list<detail::list<token_id>> tokens_;  // [n_sequences] lists of up to `capacity` tokens
  detail::list<std::uint64_t> versions_;         // [n_sequences]
  std::size_t capacity_;
};

}  // namespace espalier
