// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/kv_store/stores.cu
#pragma once

#include <cstdint>

#include "espalier/config.hpp"

namespace espalier::cuda {

//! Keys and values of every layer in the memory of the device, as pages. A view, which kernels get by value.
//!
//! A sequence has a list of pages, of `page_size` slots each; in a contiguous cache each sequence has one large page.
//!
//! Shapes      data [layers][pages][keys, values][page_size][row_size]; pages [sequences][max_pages]: the numbers of
//!             each sequence's pages; if it is nullptr, sequence s has page s alone
//! Pre         for row(), key() and value(): slot < page_size * max_pages, and the sequence has the slot's page
template <class NumberT>
struct kv_view {
  NumberT* data = nullptr;
  const std::int32_t* pages = nullptr;
  std::int64_t layer_stride = 0;  //!< numbers from one layer to the next
  std::int32_t page_size = 0;     //!< slots of a page
  std::int32_t max_pages = 1;     //!< pages of a sequence, at most
  std::int32_t row_size = 0;      //!< n_kv_heads * head_dim
  std::int32_t n_layers = 0;

  //! Position of a slot's key in its layer, counted in rows of row_size.
  ESPALIER_HOST_DEVICE std::int64_t row(std::int32_t sequence, std::int32_t slot) const {
    const std::int32_t page =
        pages == nullptr ? sequence : pages[static_cast<std::int64_t>(sequence) * max_pages + slot / page_size];
    return static_cast<std::int64_t>(page) * 2 * page_size + slot % page_size;
  }
  //! The key of a slot: [row_size].
  ESPALIER_HOST_DEVICE NumberT* key(std::int32_t layer, std::int32_t sequence, std::int32_t slot) const {
    return data + layer * layer_stride + row(sequence, slot) * row_size;
  }
  //! The value of a slot: [row_size].
  ESPALIER_HOST_DEVICE NumberT* value(std::int32_t layer, std::int32_t sequence, std::int32_t slot) const {
    return key(layer, sequence, slot) + static_cast<std::int64_t>(page_size) * row_size;
  }
};

}  // namespace espalier::cuda
