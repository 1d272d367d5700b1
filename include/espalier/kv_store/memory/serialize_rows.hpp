// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/saved_text.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"

namespace espalier::detail {

// A guard that empties a sequence in its destructor, unless `finished` is set: a sequence that was not loaded to its
// end stays empty.
template <class KVStoreT>
struct emptied_unless_finished {
  KVStoreT& kv;
  std::int32_t sequence;
  bool finished;
  ~emptied_unless_finished() {
    if (!finished) kv.truncate(sequence, 0);
  }
};

// Saves the leading rows of a sequence whose tokens the store remembers, kv.prefix(sequence), and these tokens; or
// loads them in place of the rows that the sequence has. row(slot) calls the archive with the numbers of one row.
//
// Errors      input_error if the rows do not fit the store; the archive's errors. A sequence that was being loaded is
//             then empty, or unchanged if not even its tokens could be read
template <class KVStoreT, class ArchiveT, class RowT>
void serialize_rows(KVStoreT& kv, ArchiveT& archive, std::int32_t sequence, const RowT& row) {
  std::vector<token_id> tokens;
  if constexpr (!ArchiveT::reads) tokens.assign(kv.prefix(sequence).begin(), kv.prefix(sequence).end());
  archive(tokens);
  const auto n = static_cast<std::int32_t>(tokens.size());
  emptied_unless_finished<KVStoreT> guard{kv, sequence, !ArchiveT::reads};
  if constexpr (ArchiveT::reads) {
    kv.truncate(sequence, 0);
    if (kv.append(sequence, n) < 0)
      raise<input_error>("the saved sequence has ", n, " rows, but the cache has no room for as many.");
  }
  for (std::int32_t slot = 0; slot < n; ++slot)
    row(slot);
  if constexpr (ArchiveT::reads) {
    std::vector<std::int32_t> all(tokens.size());
    std::iota(all.begin(), all.end(), 0);
    kv.commit(sequence, all);
    kv.remember(sequence, 0, tokens);
    guard.finished = true;
  }
}

// Copies the row in slot `from` to slot `to`.
template <class KVStoreT>
void move_keys_and_values(KVStoreT& kv, std::int32_t sequence, std::int32_t from, std::int32_t to) {
  for (std::int32_t layer = 0; layer < kv.n_layers(); ++layer) {
    std::copy_n(kv.key(layer, sequence, from), kv.row_size(), kv.key(layer, sequence, to));
    std::copy_n(kv.value(layer, sequence, from), kv.row_size(), kv.value(layer, sequence, to));
  }
}

// Saves or loads the keys and values of a sequence, as serialize_rows().
//
// Errors      as serialize_rows; the archive's error if the store's number of layers or size of a row is not the saved
//             one: then nothing has changed
template <class KVStoreT, class ArchiveT>
void serialize_keys_and_values(KVStoreT& kv, ArchiveT& archive, std::int32_t sequence) {
  archive.expect("layers", kv.n_layers());
  archive.expect("numbers a row", kv.row_size());
  const auto size = static_cast<std::size_t>(kv.row_size());
  serialize_rows(kv, archive, sequence, [&](std::int32_t slot) {
    for (std::int32_t layer = 0; layer < kv.n_layers(); ++layer) {
      archive(std::span(kv.key(layer, sequence, slot), size));
      archive(std::span(kv.value(layer, sequence, slot), size));
    }
  });
}

}  // namespace espalier::detail
