// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/kv_store/compaction.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/cuda/kv_store/recurrent_view.cuh"
#include "espalier/kv_store/recurrent_shape.hpp"

namespace espalier::cuda {

//! espalier::recurrent_kv in the memory of the device: a cache for models that have recurrent layers between layers of
//! attention. The keys and values of the attention layers are in a contiguous_kv. For each recurrent layer and sequence
//! it holds one state, after committed tokens alone, and rows of the tokens after it.
//!
//! A pass brings the state up to the committed tokens before it and leaves it there. So a pass that is made again gives
//! the same numbers. A text that goes back to a place before the state, or has more rows after it than there is room
//! for, has NaN in its rows until it begins anew. Tokens are not remembered, so each text is read from its beginning.
//! The cache also serves models without recurrent layers.
//!
//! Shapes      view: as contiguous_kv's; states: as recurrent_view
//! Complexity  memory of a sequence: shape.layers * state_size floats of states, and rows + shape.reach rows of
//!             shape.layers * shape.row_size floats, besides the contiguous_kv. commit: two launches; as contiguous_kv,
//!             and 2 * shape.layers * shape.row_size numbers for each row that moves
//! Law         RecurrentKVStore's
//! Errors      option_error for sizes out of range; otherwise as contiguous_kv
template <class NumberT>
class recurrent_kv {
 public:
  using number = NumberT;

  //! Makes a cache with room for `rows` tokens after a state. Two passes of a sequence must fit, since the state is one
  //! pass behind: the default is enough for passes of 128 rows.
  recurrent_kv(std::int32_t n_layers, std::int32_t row_size, const recurrent_shape& shape, std::int32_t n_sequences,
               std::int32_t capacity, std::int32_t rows = 256)
      : attention_(n_layers, row_size, n_sequences, capacity), shape_(checked(shape)), most_rows_(capacity) {
    if (shape.layers == 0) return;
    require_option("rows", rows, 2, 1 << 20);
    most_rows_ = rows < capacity ? rows : capacity;
    const std::int32_t n_slots = most_rows_ + shape.reach;
    const std::size_t of_layers = static_cast<std::size_t>(shape.layers) * static_cast<std::size_t>(n_sequences);
    const double floats =
        static_cast<double>(of_layers) * (static_cast<double>(shape.state_size) + 1.0 * n_slots * shape.row_size);
    require_option("cache size in bytes", floats * sizeof(float), 1.0, 1e15);
    states_ = device_array<float>(of_layers * static_cast<std::size_t>(shape.state_size));
    seen_ = device_array<std::int32_t>::filled(of_layers, 0);
    rows_ = device_array<float>::filled(
        of_layers * static_cast<std::size_t>(n_slots) * static_cast<std::size_t>(shape.row_size), 0);
    std::vector<std::int32_t> pages;
    for (std::int32_t s = 0; s < n_sequences; ++s) {
      for (std::int32_t slot = 0; slot < capacity; ++slot)
        pages.push_back(s * n_slots + slot % n_slots);
    }
    pages_ = device_array<std::int32_t>(std::span<const std::int32_t>(pages));
  }

  std::int32_t n_layers() const { return attention_.n_layers(); }
  std::int32_t row_size() const { return attention_.row_size(); }
  const recurrent_shape& shape() const { return shape_; }
  std::int32_t n_sequences() const { return attention_.n_sequences(); }
  std::int32_t capacity() const { return attention_.capacity(); }
  //! Number of rows that there is room for after a state, scratch included.
  std::int32_t most_rows() const { return most_rows_; }

  //! The keys and values of the attention layers, for kernels. The addresses stay the same as long as the store lives.
  kv_view<NumberT> view() const { return attention_.view(); }
  //! The states and rows of the recurrent layers, for kernels, at addresses that stay the same, too.
  recurrent_view states() const {
    const std::int32_t n_slots = most_rows_ + shape_.reach;
    return {.rows = {.data = rows_.data(),
                     .pages = pages_.data(),
                     .layer_stride = static_cast<std::int64_t>(n_sequences()) * n_slots * shape_.row_size,
                     .page_size = 1,
                     .max_pages = capacity(),
                     .row_size = shape_.row_size / 2,
                     .n_layers = shape_.layers},
            .states = states_.data(),
            .seen = seen_.data(),
            .n_sequences = n_sequences(),
            .state_size = shape_.state_size,
            .n_slots = n_slots};
  }

  //! Checks that the sequence has slots 0 to n_slots - 1; it always has as many as the capacity.
  void ensure(std::int32_t sequence, std::int32_t n_slots, cudaStream_t stream) const {
    attention_.ensure(sequence, n_slots, stream);
  }

  //! For each text, moves its kept rows (kept.base + kept.rows[i], i < kept.n) to the slots from kept.base on, in every
  //! layer. No synchronisation.
  //!
  //! Pre         kept.max <= capacity(); the kept rows lie within most_rows() slots after the state
  void commit(const text_batch& texts, const kept_rows& kept, cudaStream_t stream) const {
    attention_.commit(texts, kept, stream);
    if (shape_.layers > 0) detail::compact(states().rows, texts, kept, stream);
  }

 private:
  static const recurrent_shape& checked(const recurrent_shape& shape) {
    shape.check();
    if (shape.row_size % 2 != 0)
      raise<option_error>("recurrent row size is ", shape.row_size, ", but must be even: two rows share it.");
    return shape;
  }

  contiguous_kv<NumberT> attention_;
  recurrent_shape shape_;
  std::int32_t most_rows_;
  device_array<float> states_;        // as recurrent_view
  device_array<std::int32_t> seen_;   // as recurrent_view
  device_array<float> rows_;          // [layers][sequences][n_slots][shape.row_size]
  device_array<std::int32_t> pages_;  // [sequences][capacity] the page of each slot, a page being one slot
};

}  // namespace espalier::cuda
