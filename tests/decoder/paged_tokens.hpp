// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/core/token.hpp"
#include "espalier/kv_store/paged.hpp"

// Pages whose rows are the tokens themselves, for text_backend.
class paged_tokens : public espalier::paged_kv {
 public:
  paged_tokens(std::int32_t n_sequences, std::int32_t capacity, std::int32_t page_size, std::int32_t n_pages)
      : paged_kv(1, 1, n_sequences, capacity, page_size, n_pages) {}

  class cell {
   public:
    explicit cell(float& number) : number_(number) {}
    void operator=(espalier::token_id token) { number_ = static_cast<float>(token); }
    operator espalier::token_id() const { return static_cast<espalier::token_id>(number_); }

   private:
    float& number_;
  };
  cell token(std::int32_t sequence, std::int32_t slot) { return cell(*key(0, sequence, slot)); }
};
