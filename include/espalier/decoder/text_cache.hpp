// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/turns.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/forward/held_prefix.hpp"

namespace espalier {

//! A sequence of a cache, for the text that is written over it. It knows how much of the text the sequence holds, and
//! finds out if another part has changed the sequence.
//!
//! The store is kept by reference if it is given as an lvalue, by value otherwise. A store that remembers its tokens
//! (PrefixKVStore) tells what the sequence holds, whoever wrote it. From a store that shares rows (SharingKVStore), a
//! text that begins also gets what any other sequence holds of it. Of any other store nothing is known when a text
//! begins; while the text is written, the number of rows tells whether another part uses the sequence, unless it has
//! committed as many.
template <class KVStoreT>
class text_cache {
  using kv_type = std::remove_reference_t<KVStoreT>;
  static_assert(KVStore<kv_type>, "a text_cache is of a KVStore");

 public:
  //! Errors      those of the store, if it has no such sequence
  text_cache(KVStoreT&& kv, std::int32_t sequence) : kv_(std::forward<KVStoreT>(kv)), sequence_(sequence) {
    kv_.size(sequence);
    // The store takes memory for the sequence's tokens now.
    if constexpr (PrefixKVStore<kv_type>)
      kv_.remember(sequence, static_cast<std::int32_t>(kv_.prefix(sequence).size()), {});
  }

  kv_type& store() { return kv_; }
  const kv_type& store() const { return kv_; }
  std::int32_t sequence() const { return sequence_; }
  //! The number of committed rows.
  std::int32_t size() const { return kv_.size(sequence_); }
  //! The number of committed rows that the target sees: all, or a window of them.
  std::int32_t held() const {
    if constexpr (WindowedKVStore<kv_type>) return kv_.held(sequence_);
    return size();
  }
  //! The number of rows that may be committed until the window slides; no limit if the store has no window.
  std::int32_t until_slide() const { return rows_until_slide(kv_, sequence_); }

  //! Notes that another text begins.
  void begin() {
    held_.begin();
    known_ = 0;
    in_step_ = false;
  }

  //! Notes that the text goes on with more tokens.
  void resume() {
    if (in_step_) known_ = n_committed_;
    in_step_ = false;
  }

  //! Makes the committed rows those of the text's beginning, its last token excepted, and drops all scratch.
  //!
  //! Errors      input_error if rows of another text took the place of this one's while it was written; the next call
  //!             mends that
  void follow(std::span<const token_id> tokens) {
    const auto before_pending = static_cast<std::int32_t>(tokens.size()) - 1;
    if constexpr (SharingKVStore<kv_type>) {
      if (!in_step_) kv_.adopt(sequence_, tokens.first(tokens.size() - 1));
    }
    std::int32_t known = in_step_ ? before_pending : (std::min)(known_, before_pending);
    if constexpr (!PrefixKVStore<kv_type>) {
      if (const std::int32_t n = size(); n != n_committed_) {
        known_ = known = 0;
        if (std::exchange(in_step_, false)) {
          raise<input_error>("sequence ", sequence_, " of the cache holds ", n, " rows, but this text has committed ",
                             n_committed_,
                             ": another part uses it, too. Each text that is being written needs its own.");
        }
      }
    } else {
      const std::int32_t same = held_.of(kv_, sequence_, tokens);
      if (in_step_ && same < (std::min)(static_cast<std::int32_t>(kv_.prefix(sequence_).size()), before_pending)) {
        in_step_ = false;
        raise<input_error>("sequence ", sequence_, " of the cache holds another text from token ", same,
                           " on: another part uses it, too. Each text that is being written needs its own.");
      }
      if (!in_step_) known = (std::min)(same, before_pending);
    }
    truncate(known);
    if constexpr (PrefixKVStore<kv_type>) held_.keep(kv_, sequence_);
    in_step_ = true;
  }

  //! Drops what a failed round has left: scratch rows, and rows that are committed beyond the text.
  void drop_scratch(std::span<const token_id> tokens) {
    truncate(in_step_ ? static_cast<std::int32_t>(tokens.size()) - 1 : size());
  }

  //! The number of tokens of the text that the sequence does not hold.
  //!
  //! Errors      input_error if it holds them all
  std::int32_t pending(std::span<const token_id> tokens) const {
    const std::int32_t n = static_cast<std::int32_t>(tokens.size()) - size();
    if (n < 1) {
      raise<input_error>("sequence ", sequence_, " of the cache holds ", size(), " tokens of a text of ", tokens.size(),
                         ": another part uses it, too. Drafter and target need a sequence each.");
    }
    return n;
  }

  void truncate(std::int32_t n) {
    kv_.truncate(sequence_, n);
    n_committed_ = size();
  }

  //! Commits scratch rows, as KVStore says. The store learns their tokens from remember(), once the text has grown.
  void commit(std::span<const std::int32_t> kept) {
    kv_.commit(sequence_, kept);
    n_committed_ = size();
  }
  void remember(std::span<const token_id> tokens) {
    if constexpr (PrefixKVStore<kv_type>) held_.remember(kv_, sequence_, tokens, size());
  }

 private:
  KVStoreT kv_;
  std::int32_t sequence_;
  held_prefix held_;
  std::int32_t known_ = 0;        // leading rows that belong to the text, for follow() where the store does not tell
  std::int32_t n_committed_ = 0;  // rows of the sequence after this object's last change of it
  bool in_step_ = false;
};

}  // namespace espalier
