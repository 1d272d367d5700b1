// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "decoder/token_rows.hpp"
#include "espalier/kv_store/paged.hpp"

// Pages whose rows are the tokens themselves, for text_backend.
class paged_tokens : public token_rows<espalier::paged_kv> {
 public:
  paged_tokens(std::int32_t n_sequences, std::int32_t capacity, std::int32_t page_size, std::int32_t n_pages)
      : token_rows(1, 1, n_sequences, capacity, page_size, n_pages) {}
};
