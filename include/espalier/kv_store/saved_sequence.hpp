// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/saved_text.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/core/util/byte_reader.hpp"
#include "espalier/core/util/byte_writer.hpp"

namespace espalier {

//! Appends to `bytes` the rows of a sequence whose tokens are known, and these tokens. After read_sequence() the text
//! can go on in another store, or another process: only its pending token is forwarded there, no saved row is computed
//! again.
//!
//! Errors      input_error if there is no such sequence
template <SavedKVStore KVStoreT>
void write_sequence(KVStoreT& kv, std::int32_t sequence, std::vector<std::byte>& bytes) {
  byte_writer write(bytes, "saved sequence", 1);
  kv.serialize(write, sequence);
  write.finish();
}

//! Replaces a sequence by the saved one with which `bytes` begin. Returns the bytes after the saved sequence.
//!
//! Pre         the rows were made by the model that will read them
//! Errors      input_error if the bytes are no saved sequence, have rows of another shape, or do not fit the store. The
//!             sequence then holds what it held before, or is empty
template <SavedKVStore KVStoreT>
std::span<const std::byte> read_sequence(KVStoreT& kv, std::int32_t sequence, std::span<const std::byte> bytes) {
  byte_reader read(bytes, "saved sequence", 1);
  kv.serialize(read, sequence);
  return read.finish();
}

}  // namespace espalier
