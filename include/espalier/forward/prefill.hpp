// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/prefill.cpp
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "espalier/concepts/backend.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/kv_store.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/token.hpp"
#include "espalier/forward/checked_forward.hpp"

namespace espalier {

//! Reads committed text into a cache, in passes of a limited number of rows.
//!
//! The text beyond kv.size() is pending: the prompt at first, the last token between rounds, and the accepted tokens
//! that a truncating store has dropped. All of it is forwarded as a chain.
//!
//! If the store has a window, a pass ends at the token at which the window slides.
//!
//! Complexity  one pass for each chunk of tokens; no allocation after reserve(), except by the backend
class prefill {
 public:
  //! The most rows of one pass, if the user does not set another number.
  static constexpr std::int32_t default_chunk = 64;

  prefill() = default;
  //! Makes room for passes of up to `chunk` rows.
  explicit prefill(std::int32_t chunk) { reserve(chunk); }

  //! Sets the most rows that a pass may have, and makes room for them.
  void reserve(std::int32_t chunk) {
    chunk_ = chunk;
    batch_.reserve(chunk, chunk);
    first_rows(chunk);
  }

  //! Number of bytes that first_rows() takes of an arena.
  static constexpr std::size_t bytes(std::int32_t n) {
    return arena::bytes_of<std::int32_t>(static_cast<std::size_t>(n));
  }

  //! The numbers 0 to n - 1, which are the rows of a pass: [n]. No allocation up to n == chunk.
  std::span<const std::int32_t> first_rows(std::int32_t n) {
    rows_.reserve(static_cast<std::size_t>(n));
    while (std::ssize(rows_) < n)
      rows_.push_back(static_cast<std::int32_t>(rows_.size()));
    return std::span<const std::int32_t>(rows_).first(static_cast<std::size_t>(n));
  }

  //! Runs one pass over the next n tokens, or as many of them as a pass may take; returns the logits of the last
  //! n_outputs tokens that it has read. Before their rows are committed, before_commit(first, n) is called with the
  //! index in the text of the first token that the pass has read, and their number.
  //!
  //! Pre         kv.size(sequence) + n <= text.size()
  //! Errors      input_error if the text does not fit the cache; otherwise as checked_forward, and then the cache holds
  //!             scratch
  template <class BackendT, class KVStoreT, class BeforeCommitT>
  requires Backend<BackendT, KVStoreT> && KVStore<KVStoreT>
  auto pass(BackendT& backend, KVStoreT& kv, std::int32_t sequence, std::span<const token_id> text, std::int32_t n,
            std::int32_t n_outputs, const BeforeCommitT& before_commit) {
    const std::int32_t done = kv.size(sequence);
    n = (std::min)(n, most_rows(backend, kv, sequence));
    batch_.clear();
    if (!add(batch_, kv, sequence, text, n, (std::min)(n, n_outputs)))
      raise<input_error>("a text of ", text.size(), " tokens does not fit a cache of ", kv.capacity(),
                         ", or its pages are used up.");
    const auto logits = checked_forward(backend, kv, batch_.view(), detail::columns_of(backend));
    before_commit(done, n);
    commit(kv, sequence, text, n);
    return logits;
  }

  //! First half of a pass over several texts: adds the next n tokens of a text to a batch; the last n_outputs of them
  //! ask for logits. Returns false, and adds nothing, if the cache has no room for them.
  //!
  //! Pre         kv.size(sequence) + n <= text.size(), n_outputs <= n <= rows_until_slide(kv, sequence); no scratch
  template <KVStore KVStoreT>
  static bool add(forward_batch& batch, KVStoreT& kv, std::int32_t sequence, std::span<const token_id> text,
                  std::int32_t n, std::int32_t n_outputs) {
    const std::int32_t done = kv.size(sequence);
    const std::int32_t prefix = kv.append(sequence, n);
    if (prefix < 0) return false;
    batch.begin_sequence(sequence, prefix, n);
    batch.add_chain(text.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(n)), prefix, n_outputs);
    return true;
  }

  //! Second half of a pass over several texts: commits the rows of the n tokens that were added and computed.
  template <KVStore KVStoreT>
  void commit(KVStoreT& kv, std::int32_t sequence, std::span<const token_id> text, std::int32_t n) {
    const std::int32_t done = kv.size(sequence);
    kv.commit(sequence, first_rows(n));
    if constexpr (PrefixKVStore<KVStoreT>)
      kv.remember(sequence, done, text.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(n)));
  }

  //! Runs passes until the cache holds the whole text. Returns the logits of its last n_outputs tokens, or of fewer if
  //! fewer are left to read or fit one pass. Each pass() is given after_pass as its before_commit.
  //!
  //! Errors      as pass(); the finished chunks stay committed
  template <class BackendT, class KVStoreT, class AfterPassT>
  requires Backend<BackendT, KVStoreT> && KVStore<KVStoreT>
  auto run(BackendT& backend, KVStoreT& kv, std::int32_t sequence, std::span<const token_id> text,
           std::int32_t n_outputs, const AfterPassT& after_pass) {
    for (;;) {
      const std::int32_t most = most_rows(backend, kv, sequence);
      const std::int32_t left = static_cast<std::int32_t>(text.size()) - kv.size(sequence);
      if (left <= 0) return vocab_rows<logit_number<BackendT, KVStoreT>>{};
      if (left <= most) return pass(backend, kv, sequence, text, left, n_outputs, after_pass);
      pass(backend, kv, sequence, text, next_rows(left, most, n_outputs), 0, after_pass);
    }
  }

  //! Number of rows of the next pass, at most `most`, if `left` tokens are to be read and the last n_outputs of them
  //! must be in one pass.
  static std::int32_t next_rows(std::int32_t left, std::int32_t most, std::int32_t n_outputs) {
    if (left <= most) return left;
    const std::int32_t rest = left - most;
    return rest < n_outputs ? (std::max)(std::int32_t{1}, most - (n_outputs - rest)) : most;
  }

 private:
  template <class BackendT, class KVStoreT>
  std::int32_t most_rows(const BackendT& backend, const KVStoreT& kv, std::int32_t sequence) const {
    return (std::min)({chunk_, rows_until_slide(kv, sequence), max_rows_of(backend)});
  }

  std::int32_t chunk_ = default_chunk;
  forward_batch batch_;
  detail::list<std::int32_t> rows_;
};

}  // namespace espalier
