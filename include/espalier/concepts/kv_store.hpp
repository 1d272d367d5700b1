// SPDX-License-Identifier: BSL-1.0
// Tested by tests/concepts/minimal.cpp
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <span>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/util/byte_reader.hpp"
#include "espalier/core/util/byte_writer.hpp"

namespace espalier {

namespace detail {

template <class KVStoreT>
concept HasCacheSize = requires(const KVStoreT& kv, std::int32_t sequence) {
  { kv.size(sequence) } -> std::convertible_to<std::int32_t>;
  { kv.capacity() } -> std::convertible_to<std::int32_t>;
};

template <class KVStoreT>
concept HasAppend = requires(KVStoreT& kv, std::int32_t sequence, std::int32_t n) {
  { kv.append(sequence, n) } -> std::convertible_to<std::int32_t>;
};

template <class KVStoreT>
concept HasCommit = requires(KVStoreT& kv, std::int32_t sequence, std::span<const std::int32_t> kept) {
  { kv.commit(sequence, kept) } -> std::convertible_to<std::int32_t>;
};

template <class KVStoreT>
concept HasTruncate = requires(KVStoreT& kv, std::int32_t sequence, std::int32_t n) {
  kv.truncate(sequence, n);
};

template <class KVStoreT>
concept SaysWhetherItCompacts = requires(const KVStoreT& kv) {
  { kv.compacts() } -> std::same_as<bool>;
};

template <class KVStoreT>
concept RemembersTokens = requires(KVStoreT& kv, const KVStoreT& fixed, std::int32_t sequence,
                                   std::span<const token_id> tokens) {
  { fixed.prefix(sequence) } -> std::convertible_to<std::span<const token_id>>;
  { fixed.version(sequence) } -> std::same_as<std::uint64_t>;
  kv.remember(sequence, sequence, tokens);
};

template <class KVStoreT>
concept HasAdopt = requires(KVStoreT& kv, std::int32_t sequence, std::span<const token_id> tokens) {
  { kv.adopt(sequence, tokens) } -> std::convertible_to<std::int32_t>;
};

template <class KVStoreT>
concept HasFork = requires(KVStoreT& kv, std::int32_t sequence) {
  kv.fork(sequence, sequence);
};

template <class KVStoreT>
concept HasWindow = requires(const KVStoreT& kv, std::int32_t sequence) {
  { kv.held(sequence) } -> std::convertible_to<std::int32_t>;
  { kv.until_slide(sequence) } -> std::convertible_to<std::int32_t>;
  { kv.scratch() } -> std::convertible_to<std::int32_t>;
};

template <class KVStoreT>
concept HasPages = requires(const KVStoreT& kv) {
  { kv.n_pages() } -> std::convertible_to<std::int32_t>;
  { kv.page_size() } -> std::convertible_to<std::int32_t>;
  { kv.n_free() } -> std::convertible_to<std::int32_t>;
};

}  // namespace detail

//! The cache of keys and values as slots, for one or more sequences: committed rows first, then this round's scratch.
//!
//! Minimal definition
//!   size(sequence) -> int          committed rows
//!   capacity() -> int              rows a sequence can hold, committed and scratch
//!   append(sequence, n) -> int     adds n scratch slots; returns the first of them, or -1 (and changes nothing) where
//!                                  they do not fit. Scratch begins after the rows that a pass sees of the text: at
//!                                  slot size(), unless a window has slid over the text
//!   commit(sequence, kept) -> int  commits these scratch rows in this order and drops all others; kept ascends, and 0
//!                                  is the first scratch row; returns the number of rows that it could keep. A
//!                                  compacting store keeps all; a store that only truncates keeps the longest leading
//!                                  run with kept[i] == i, and the tokens of the other rows join the next round's
//!                                  pending chain
//!   truncate(sequence, n)          keeps the first n committed rows and drops scratch; an n beyond size() drops
//!                                  scratch only
//!   compacts() -> bool             true if commit keeps all rows that it is given
//! Laws
//!   Appending a chain and committing all of it has the same result as appending and committing its rows one by one;
//!   append, then commit of no row, changes nothing; a committed row never changes (but see WindowedKVStore).
//!   append returns -1 for an n below 0; truncate to an n below 0 keeps nothing.
//!   A store over an engine that knows only paths (llama_cpp_kv) commits kept rows that form one path, and refuses
//!   others.
//! Errors
//!   input_error, with nothing changed, from commit if a row is no scratch row or does not ascend, and from any member
//!   if the sequence does not exist. The message names the row ("row 3") or the sequence ("sequence -1")
//! Models
//!   contiguous_kv, paged_kv, sink_window_kv, token_kv, recurrent_kv, paged_recurrent_kv, each in both settings of
//!   commit_mode; llama_cpp_kv
template <class KVStoreT>
concept KVStore = detail::HasCacheSize<KVStoreT> && detail::HasAppend<KVStoreT> && detail::HasCommit<KVStoreT> &&
    detail::HasTruncate<KVStoreT> && detail::SaysWhetherItCompacts<KVStoreT>;

//! A store that remembers the tokens of its rows, so that a decoder can use the rows that another decoder, or another
//! text with the same beginning, has left.
//!
//! Minimal definition, besides KVStore
//!   prefix(sequence) -> span<const token_id>   the tokens of the leading committed rows, as far as they are known;
//!                                              valid until the sequence changes
//!   version(sequence) -> std::uint64_t         a number that changes with each change of prefix(sequence), and that no
//!                                              other prefix of any store has had: while it is the same, tokens need
//!                                              not be compared. 0 for a fresh sequence, whose prefix is empty
//!   remember(sequence, first, tokens)          takes, after a commit, the tokens of the committed rows from number
//!                                              `first` on
//! Laws
//!   truncate(n) forgets the tokens of the rows that it drops.
//! Models
//!   contiguous_kv, paged_kv, token_kv, recurrent_kv, paged_recurrent_kv, llama_cpp_kv
template <class KVStoreT>
concept PrefixKVStore = KVStore<KVStoreT> && detail::RemembersTokens<KVStoreT>;

//! A store of pages whose sequences share rows: a text uses the rows that any other text with the same beginning has
//! computed, and several texts can go on from one text. No row is copied until a sequence writes into a page that other
//! sequences use, too.
//!
//! Minimal definition, besides PrefixKVStore
//!   adopt(sequence, tokens) -> int   makes the sequence hold the longest beginning of these tokens that the store has
//!                                    rows of, and no other row; returns the number of rows. Rows of that beginning
//!                                    that the sequence already holds stay where they are. The store finds the rows
//!                                    that truncate, adopt or fork gave up while their tokens were known and that were
//!                                    not evicted since, and the full pages that sequences hold; of rows that several
//!                                    sequences have computed each for itself, it finds those of one sequence
//!   fork(from, to)                   makes `to` hold the committed rows of `from`, and remember their tokens as far as
//!                                    they are known
//!   n_pages(), page_size() -> int    pages of the store, rows of a page
//!   n_free() -> int                  pages that no sequence uses; they may hold rows that were given up
//! Laws
//!   No sequence changes a row that another sequence holds. Adopted rows are the rows of the tokens that were asked
//!   for. append finds no room only where fewer pages are free than it needs, with one page for a copy; rows that were
//!   given up are evicted for it, the oldest first. Once all sequences are truncated to 0 rows, all pages are free.
//! Models
//!   paged_kv, paged_recurrent_kv
template <class KVStoreT>
concept SharingKVStore =
    PrefixKVStore<KVStoreT> && detail::HasAdopt<KVStoreT> && detail::HasFork<KVStoreT> && detail::HasPages<KVStoreT>;

//! A store that does not keep all rows of a text: at certain numbers of committed rows its window slides, and some rows
//! are dropped. So a text may be longer than the store; the row of a token is then computed from a window of the text
//! before it. See sink_window_kv.
//!
//! Minimal definition, besides KVStore
//!   size(sequence) -> int          committed rows of the text so far, dropped rows included
//!   held(sequence) -> int          committed rows that the store still holds: in slots 0 to held - 1, in the order of
//!                                  the text; the position of each is the number of its slot
//!   until_slide(sequence) -> int   rows that may be committed until the window slides; at least one
//!   scratch() -> int               rows that a sequence has room for beyond the rows that may be committed
//!   commit(sequence, kept)         keeps until_slide() rows at most: the rows after them see too much of the text
//!   truncate(sequence, n)          keeps no row if the window has slid at a size of more than n rows: the rows that
//!                                  the store held before that are gone, and the text is to be read again
//! Laws
//!   Which rows are held, and until_slide(), depends only on how many rows were committed since the sequence was empty,
//!   not on how many at a time. The held rows change only when the window slides, and by truncate.
//!   append finds room for until_slide() + scratch() rows.
//! Models
//!   sink_window_kv
template <class KVStoreT>
concept WindowedKVStore = KVStore<KVStoreT> && detail::HasWindow<KVStoreT>;

//! Number of rows that a sequence may commit until its window slides; 2^31 - 1 where the store has no window.
//!
//! Post        at least 1
template <KVStore KVStoreT>
std::int32_t rows_until_slide(const KVStoreT& kv, std::int32_t sequence) {
  if constexpr (WindowedKVStore<KVStoreT>) return kv.until_slide(sequence);
  return (std::numeric_limits<std::int32_t>::max)();
}

//! Checks that a store with a window has scratch for n_drafted rows, the most that a round may draft.
//!
//! Errors      option_error where it has less
template <KVStore KVStoreT>
void require_scratch(const KVStoreT& kv, std::int32_t n_drafted) {
  if constexpr (WindowedKVStore<KVStoreT>) {
    if (kv.scratch() < n_drafted) {
      raise<option_error>("option scratch is ", kv.scratch(), ", but a round may draft ", n_drafted,
                          " tokens: the cache needs room for as many rows beside its window.");
    }
  }
}

//! A store that can save the rows of a sequence and load them: see write_sequence and read_sequence.
//!
//! Minimal definition, besides PrefixKVStore
//!   serialize(archive, sequence)   calls the archive with the tokens of prefix(sequence) and their rows. A byte_reader
//!                                  makes them the committed rows of the sequence, in place of the rows that it held
//! Models
//!   contiguous_kv, paged_kv, token_kv, recurrent_kv, paged_recurrent_kv
template <class KVStoreT>
concept SavedKVStore = PrefixKVStore<KVStoreT> &&
    requires(KVStoreT& kv, byte_writer& writer, byte_reader& reader, std::int32_t sequence) {
  kv.serialize(writer, sequence);
  kv.serialize(reader, sequence);
};

}  // namespace espalier
