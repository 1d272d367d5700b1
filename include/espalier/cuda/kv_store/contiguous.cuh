// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/kv_store/stores.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/core/error.hpp"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/kv_store/compaction.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/kv_store/memory/kv_shape.hpp"
#include "espalier/kv_store/token_ledger.hpp"

namespace espalier::cuda {

//! espalier::contiguous_kv in the memory of the device: each sequence has room for `capacity` rows. There is no
//! commit_mode: a commit always moves the kept rows together, so that it can keep every row that it is given.
//!
//! Shapes      as kv_view, one page of `capacity` slots for each sequence
//! Complexity  commit: one launch, reads and writes each row that changes its slot once, keys and values of all layers:
//!             4 * n_layers * row_size numbers a row; no synchronisation, no allocation
//! Law         KVStore's
//! Errors      option_error for sizes out of range; input_error for more slots than the capacity, or a sequence that
//!             does not exist; cuda_error if there is no memory
template <class NumberT>
class contiguous_kv {
 public:
  using number = NumberT;

  contiguous_kv(std::int32_t n_layers, std::int32_t row_size, std::int32_t n_sequences, std::int32_t capacity)
      : shape_(n_layers, row_size, n_sequences, capacity),
        tokens_(n_sequences, capacity),
        data_(shape_.numbers(static_cast<double>(n_sequences), capacity, sizeof(NumberT))) {}

  std::int32_t n_layers() const { return shape_.n_layers; }
  std::int32_t row_size() const { return shape_.row_size; }
  std::int32_t n_sequences() const { return shape_.n_sequences; }
  std::int32_t capacity() const { return shape_.capacity; }

  //! The tokens of the leading committed rows, as far as the host knows them, and the version of these tokens: see
  //! PrefixKVStore.
  std::span<const token_id> prefix(std::int32_t sequence) const { return tokens_.prefix(sequence); }
  std::uint64_t version(std::int32_t sequence) const { return tokens_.version(sequence); }
  void remember(std::int32_t sequence, std::int32_t first, std::span<const token_id> tokens) {
    tokens_.remember(sequence, first, tokens);
  }

  //! The rows of all sequences, for kernels. The addresses stay the same as long as the store lives.
  kv_view<NumberT> view() const {
    return {.data = data_.data(),
            .pages = nullptr,
            .layer_stride = static_cast<std::int64_t>(shape_.n_sequences) * 2 * shape_.capacity * shape_.row_size,
            .page_size = shape_.capacity,
            .max_pages = 1,
            .row_size = shape_.row_size,
            .n_layers = shape_.n_layers};
  }

  //! Checks that the sequence has slots 0 to n_slots - 1; it always has as many as the capacity.
  void ensure(std::int32_t sequence, std::int32_t n_slots, cudaStream_t) const { shape_.check(sequence, n_slots); }

  //! For each text, moves its kept rows (kept.base + kept.rows[i], i < kept.n) to the slots from kept.base on, in every
  //! layer. No synchronisation.
  //!
  //! Pre         kept.max <= capacity()
  void commit(const text_batch& texts, const kept_rows& kept, cudaStream_t stream) const {
    detail::compact(view(), texts, kept, stream);
  }

 private:
  espalier::detail::kv_shape shape_;
  token_ledger tokens_;
  device_array<NumberT> data_;
};

}  // namespace espalier::cuda
