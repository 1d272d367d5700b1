// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "espalier/constraint/vocabulary_trie.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"

namespace models {

//! The bytes of a tokenizer's tokens, for constraints. Special tokens have no bytes: constraints write none of them
//! except those that end a text.
inline espalier::vocabulary_trie vocabulary_of(const espalier::tokenizer& text) {
  std::vector<std::string> pieces;
  for (int t = 0; t < text.size(); ++t)
    pieces.emplace_back(text.piece(t));
  return espalier::vocabulary_trie(std::move(pieces), text.ends_of_text());
}

}  // namespace models
