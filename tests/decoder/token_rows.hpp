// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/core/token.hpp"

// A store of keys and values whose rows are the tokens themselves, for text_backend.
template <class StoreT>
struct token_rows : StoreT {
  using StoreT::StoreT;

  class cell {
   public:
    explicit cell(float& number) : number_(number) {}
    void operator=(espalier::token_id token) { number_ = static_cast<float>(token); }
    operator espalier::token_id() const { return static_cast<espalier::token_id>(number_); }

   private:
    float& number_;
  };
  cell token(std::int32_t sequence, std::int32_t slot) { return cell(*this->key(0, sequence, slot)); }
};
