// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/decoder.cpp
#pragma once

#include <cstdint>
#include <span>

#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/token.hpp"
#include "espalier/kv_store/memory/serialize_rows.hpp"
#include "espalier/kv_store/slot_ledger.hpp"

namespace espalier {

//! A cache whose rows are the tokens themselves: for models that are functions of the text, and for a program's own
//! inference code if that only needs the token in each slot. See text_backend.
//!
//! Shapes      token(sequence, slot), slot 0 to capacity - 1
//! Law         as PrefixKVStore
//! Errors      as slot_ledger
class token_kv {
 public:
  explicit token_kv(std::int32_t capacity, commit_mode mode = commit_mode::compact, std::int32_t n_sequences = 1)
      : ledger_(n_sequences, capacity, mode),
        tokens_(static_cast<std::size_t>(n_sequences) * static_cast<std::size_t>(capacity), -1) {}

  //! Number of bytes that a store of one sequence takes of an arena.
  static constexpr std::size_t bytes(const static_capacity& c) {
    return slot_ledger::bytes(c) + arena::bytes_of<token_id>(static_cast<std::size_t>(c.context));
  }

  std::int32_t size(std::int32_t sequence) const { return ledger_.size(sequence); }
  std::int32_t capacity() const { return ledger_.capacity(); }
  bool compacts() const { return ledger_.compacts(); }
  std::int32_t append(std::int32_t sequence, std::int32_t n) { return ledger_.append(sequence, n); }
  std::int32_t commit(std::int32_t sequence, std::span<const std::int32_t> kept) {
    return ledger_.commit(sequence, kept,
                          [&](std::int32_t from, std::int32_t to) { token(sequence, to) = token(sequence, from); });
  }
  void truncate(std::int32_t sequence, std::int32_t n) { ledger_.truncate(sequence, n); }

  std::span<const token_id> prefix(std::int32_t sequence) const { return ledger_.prefix(sequence); }
  std::uint64_t version(std::int32_t sequence) const { return ledger_.version(sequence); }
  void remember(std::int32_t sequence, std::int32_t first, std::span<const token_id> tokens) {
    ledger_.remember(sequence, first, tokens);
  }
  template <class ArchiveT>
  void serialize(ArchiveT& archive, std::int32_t sequence) {
    archive.expect("layers", 0);
    detail::serialize_rows(*this, archive, sequence, [&](std::int32_t slot) { archive(token(sequence, slot)); });
  }

  //! The token in a slot; -1 before one was written.
  //!
  //! Pre         sequence and slot exist
  token_id& token(std::int32_t sequence, std::int32_t slot) {
    return tokens_[static_cast<std::size_t>(sequence) * static_cast<std::size_t>(capacity()) +
                   static_cast<std::size_t>(slot)];
  }

 private:
  slot_ledger ledger_;
  detail::list<token_id> tokens_;
};

}  // namespace espalier
