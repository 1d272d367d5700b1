// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "espalier/core/token.hpp"

namespace espalier {

//! The number of a text's leading tokens that a sequence of a PrefixKVStore, on host or device, holds. Tokens are
//! compared only if the sequence has changed since keep(), or if begin() was called after it.
//!
//! Complexity  of(): O(1) if no tokens are compared, else O(tokens)
class held_prefix {
 public:
  //! Begins another text: of() compares its tokens until keep() or remember() is called.
  void begin() { version_.reset(); }

  //! Number of leading tokens of the text that the sequence holds.
  template <class KVStoreT>
  std::int32_t of(const KVStoreT& kv, std::int32_t sequence, std::span<const token_id> tokens) const {
    const std::span<const token_id> held = kv.prefix(sequence);
    if (version_ == kv.version(sequence)) return static_cast<std::int32_t>((std::min)(held.size(), tokens.size()));
    return static_cast<std::int32_t>(std::mismatch(held.begin(), held.end(), tokens.begin(), tokens.end()).first -
                                     held.begin());
  }

  //! Notes that all tokens that the sequence holds now are the beginning of the text.
  template <class KVStoreT>
  void keep(const KVStoreT& kv, std::int32_t sequence) {
    version_ = kv.version(sequence);
  }

  //! Tells the store that the sequence's rows `first` to `end - 1` are the rows of tokens[first] to tokens[end - 1],
  //! where `tokens` is the whole text; then calls keep().
  //!
  //! Pre         the sequence's rows before `first` are rows of the text's tokens, too
  template <class KVStoreT>
  void remember(KVStoreT& kv, std::int32_t sequence, std::span<const token_id> tokens, std::int32_t first,
                std::int32_t end) {
    kv.remember(sequence, first,
                tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first)));
    keep(kv, sequence);
  }

  //! Tells the store the tokens of those rows before `end` whose tokens it does not know yet; then calls keep().
  template <class KVStoreT>
  void remember(KVStoreT& kv, std::int32_t sequence, std::span<const token_id> tokens, std::int32_t end) {
    remember(kv, sequence, tokens, (std::min)(static_cast<std::int32_t>(kv.prefix(sequence).size()), end), end);
  }

 private:
  std::optional<std::uint64_t> version_;
};

}  // namespace espalier
