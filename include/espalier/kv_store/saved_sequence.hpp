// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/core/byte_reader.hpp"
#include "espalier/core/byte_writer.hpp"

namespace espalier {

//! Appends the rows of a sequence, and which tokens they are of, to `bytes`. With read_sequence a text goes on in
//! another store, or another process, and nothing of it but its pending token is forwarded again.
//!
//! Errors      input_error where there is no such sequence
template <SavedKVStore KVStoreT>
void write_sequence(KVStoreT& kv, std::int32_t sequence, std::vector<std::byte>& bytes) {
  byte_writer write(bytes, "saved sequence", 1);
  kv.serialize(write, sequence);
  write.finish();
}

//! Replaces a sequence by the one that `bytes` begin with; gives the bytes after it.
//!
//! Pre         the rows were made by the model that will read them
//! Errors      input_error where the bytes are no saved sequence, or of another shape of row, or do not fit the store.
//!             It then holds what it held, or is empty
template <SavedKVStore KVStoreT>
std::span<const std::byte> read_sequence(KVStoreT& kv, std::int32_t sequence, std::span<const std::byte> bytes) {
  byte_reader read(bytes, "saved sequence", 1);
  kv.serialize(read, sequence);
  return read.finish();
}

}  // namespace espalier
