// SPDX-License-Identifier: BSL-1.0
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
//!   append(sequence, n) -> int     n more scratch slots; the first of them, or -1 (and no change) where they do not
//!                                  fit. Scratch begins after the rows that a pass sees of the text: at slot size(),
//!                                  unless a window has slid over the text
//!   commit(sequence, kept) -> int  commits these scratch rows in this order and drops all others; kept ascends and
//!                                  counts from size(sequence); returns how many it could keep. A compacting store
//!                                  keeps all; one that only truncates keeps the longest leading run with kept[i] == i,
//!                                  and what is missing joins the next round's pending chain
//!   truncate(sequence, n)          keeps the first n committed rows; drops scratch; n beyond size() drops scratch only
//!   compacts() -> bool
//! Laws
//!   commit after append of a chain equals plain appending; append, then commit of nothing, changes nothing; what is
//!   committed never changes (but see WindowedKVStore).
//!   append of less than nothing is -1; truncate to less than nothing leaves nothing.
//!   A store over an engine that knows paths alone (llama_cpp_kv) keeps kept rows that are one, and refuses others.
//! Errors
//!   input_error, with nothing changed, from commit for a row that is no scratch row or does not ascend ("row 3"), and
//!   from any member for a sequence that is none ("sequence -1")
//! Models
//!   contiguous_kv, paged_kv, sink_window_kv, token_kv, each in both settings; llama_cpp_kv
template <class KVStoreT>
concept KVStore = detail::HasCacheSize<KVStoreT> && detail::HasAppend<KVStoreT> && detail::HasCommit<KVStoreT> &&
    detail::HasTruncate<KVStoreT> && detail::SaysWhetherItCompacts<KVStoreT>;

//! A store that remembers which tokens its rows are of: whoever has the same tokens goes on with them, another decoder,
//! a text that begins alike, a text with another temperature.
//!
//! Minimal definition, besides KVStore
//!   prefix(sequence) -> span<const token_id>   the tokens of the leading committed rows, as far as they are known;
//!                                              valid until the sequence changes
//!   version(sequence) -> std::uint64_t         another number after each change of prefix(sequence), which no other
//!                                              state of any store has had: where it is as it was, tokens need not be
//!                                              compared
//!   remember(sequence, first, tokens)          after a commit: the tokens of the committed rows from number `first` on
//! Laws
//!   truncate(n) forgets the tokens of the rows that it drops.
//! Models
//!   contiguous_kv, paged_kv, token_kv, llama_cpp_kv
template <class KVStoreT>
concept PrefixKVStore = KVStore<KVStoreT> && detail::RemembersTokens<KVStoreT>;

//! A store of pages whose sequences share rows: a text goes on with what any other has computed of its beginning, and
//! several go on from one. No row is copied until a sequence writes into a page that is not its alone.
//!
//! Minimal definition, besides PrefixKVStore
//!   adopt(sequence, tokens) -> int   the sequence then holds the longest beginning of these tokens that the store has
//!                                    rows of, and nothing else; gives how many. Rows that it holds itself stay where
//!                                    they are as long. Found is what was given up with its tokens known (by truncate,
//!                                    adopt or fork) and not evicted since, and the full pages of what sequences hold;
//!                                    of what several have computed for themselves, what one of them holds
//!   fork(from, to)                   `to` then holds the committed rows of `from`, and what is known of their tokens
//!   n_pages(), page_size() -> int
//!   n_free() -> int                  pages that no sequence uses; rows that were given up may lie in them
//! Laws
//!   What one sequence writes changes no row that another holds. Adopted rows are those of the tokens. append finds no
//!   room only where fewer pages are free than it takes, one for a copy included; rows that were given up are evicted
//!   for it, the oldest first. Once all sequences are truncated to nothing, all pages are free.
//! Models
//!   paged_kv
template <class KVStoreT>
concept SharingKVStore =
    PrefixKVStore<KVStoreT> && detail::HasAdopt<KVStoreT> && detail::HasFork<KVStoreT> && detail::HasPages<KVStoreT>;

//! A store that does not keep all rows of a text: at certain numbers of committed rows its window slides, and some are
//! dropped. So a text may be longer than the store, and what is computed of a token is what a window of the text before
//! it says. See sink_window_kv.
//!
//! Minimal definition, besides KVStore
//!   size(sequence) -> int          committed rows, dropped ones included: those of the text so far
//!   held(sequence) -> int          those that are held: in slots 0 to held - 1, in their order, at the positions of
//!                                  their slots
//!   until_slide(sequence) -> int   rows that may be committed, at least one, until the window slides
//!   scratch() -> int               rows that a sequence has room for beyond those
//!   commit(sequence, kept)         keeps until_slide() rows at most: those after them see too much of the text
//!   truncate(sequence, n)          keeps nothing where the window has slid at more than n rows: what it then held is
//!                                  gone, and the text is to be read again
//! Laws
//!   Which rows are held, and until_slide(), depends on the number of rows committed since there were none, not on how
//!   many at a time. What is held changes when the window slides, and by truncate, alone.
//!   append finds room for until_slide() + scratch() rows.
//! Models
//!   sink_window_kv
template <class KVStoreT>
concept WindowedKVStore = KVStore<KVStoreT> && detail::HasWindow<KVStoreT>;

//! Rows that a sequence may commit until its window slides; no limit where the store has no window.
//!
//! Post        at least 1
template <KVStore KVStoreT>
std::int32_t rows_until_slide(const KVStoreT& kv, std::int32_t sequence) {
  if constexpr (WindowedKVStore<KVStoreT>) return kv.until_slide(sequence);
  return (std::numeric_limits<std::int32_t>::max)();
}

//! What a round may draft, of a store with a window.
//!
//! Errors      option_error where its scratch has no room for so many rows
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
//!                                  makes them the committed rows of the sequence, instead of those that it held
//! Models
//!   contiguous_kv, paged_kv, token_kv
template <class KVStoreT>
concept SavedKVStore = PrefixKVStore<KVStoreT> &&
    requires(KVStoreT& kv, byte_writer& writer, byte_reader& reader, std::int32_t sequence) {
  kv.serialize(writer, sequence);
  kv.serialize(reader, sequence);
};

}  // namespace espalier
