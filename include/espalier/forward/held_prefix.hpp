// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "espalier/core/token.hpp"

namespace espalier {

//! How much of a text a sequence of a PrefixKVStore holds, of the host or the device. Tokens are compared only where
//! the sequence has changed since keep().
//!
//! Complexity  O(1) where it has not, else O(tokens)
class held_prefix {
 public:
  //! Another text: all of it is compared.
  void begin() { version_.reset(); }

  //! Leading tokens of the text that the sequence holds.
  template <class KVStoreT>
  std::int32_t of(const KVStoreT& kv, std::int32_t sequence, std::span<const token_id> tokens) const {
    const std::span<const token_id> held = kv.prefix(sequence);
    if (version_ == kv.version(sequence)) return static_cast<std::int32_t>((std::min)(held.size(), tokens.size()));
    return static_cast<std::int32_t>(std::mismatch(held.begin(), held.end(), tokens.begin(), tokens.end()).first -
                                     held.begin());
  }

  //! All that the sequence holds is the text's beginning.
  template <class KVStoreT>
  void keep(const KVStoreT& kv, std::int32_t sequence) {
    version_ = kv.version(sequence);
  }

  //! Tells the store which tokens the rows from number `first` to `end` are of. Those before `first` are of the text,
  //! too.
  template <class KVStoreT>
  void remember(KVStoreT& kv, std::int32_t sequence, std::span<const token_id> tokens, std::int32_t first,
                std::int32_t end) {
    kv.remember(sequence, first,
                tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first)));
    keep(kv, sequence);
  }

  //! The same of all rows up to `end` that it does not know.
  template <class KVStoreT>
  void remember(KVStoreT& kv, std::int32_t sequence, std::span<const token_id> tokens, std::int32_t end) {
    remember(kv, sequence, tokens, (std::min)(static_cast<std::int32_t>(kv.prefix(sequence).size()), end), end);
  }

 private:
  std::optional<std::uint64_t> version_;
};

}  // namespace espalier
