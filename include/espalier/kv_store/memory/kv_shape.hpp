// SPDX-License-Identifier: BSL-1.0
// Tested by tests/kv_store/contiguous.cpp
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/core/error.hpp"

namespace espalier::detail {

// Returns the sequence as an index, after the check that it exists.
//
// Errors      input_error if the store has no such sequence
inline std::size_t require_sequence(std::int32_t sequence, std::size_t n_sequences) {
  if (sequence < 0 || static_cast<std::size_t>(sequence) >= n_sequences)
    raise<input_error>("sequence ", sequence, " does not exist: the store holds ", n_sequences, ".");
  return static_cast<std::size_t>(sequence);
}

// The sizes of a store of keys and values.
//
// Errors      constructor: option_error for a size out of range
struct kv_shape {
  kv_shape(std::int32_t layers, std::int32_t size_of_row, std::int32_t sequences, std::int32_t slots)
      : n_layers(layers), row_size(size_of_row), n_sequences(sequences), capacity(slots) {
    require_option("number of layers", n_layers, 1, 1 << 20);
    require_option("cache row size", row_size, 1, 1 << 24);
    require_option("number of sequences", n_sequences, 1, 1 << 20);
    require_option("cache capacity", capacity, 1, 1 << 30);
  }

  // Returns how many numbers the keys and values of all layers are, in n_pages pages of page_size slots each. `bytes`
  // is the size of one number.
  //
  // Errors      option_error if they take more than 1e15 bytes
  std::size_t numbers(double n_pages, double page_size, std::size_t bytes) const {
    const double n = 2.0 * n_layers * row_size * n_pages * page_size;
    require_option("cache size in bytes", n * static_cast<double>(bytes), 1.0, 1e15);
    return static_cast<std::size_t>(n);
  }

  // Checks a sequence and its number of slots.
  //
  // Errors      input_error if the sequence does not exist, or has no room for so many slots
  void check(std::int32_t sequence, std::int32_t n_slots) const {
    require_sequence(sequence, static_cast<std::size_t>(n_sequences));
    if (n_slots < 0 || n_slots > capacity) {
      raise<input_error>("sequence ", sequence, " cannot have ", n_slots, " slots: the capacity is ", capacity, ".");
    }
  }

  std::int32_t n_layers;
  std::int32_t row_size;
  std::int32_t n_sequences;
  std::int32_t capacity;
};

}  // namespace espalier::detail
