// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "espalier/core/token.hpp"
#include "espalier/model/tokenizer/tokenizer/sentencepiece_encoder.hpp"
#include "espalier/model/tokenizer/tokenizer/tokenizer_parts.hpp"

namespace espalier::detail {

// The tokenizer in the bytes of a SentencePiece model.
//
// Errors      model_error for bytes that are no such model
inline tokenizer_parts read_sentencepiece(std::string_view bytes, const std::string& where) {
  tokenizer_parts parts{where, {}, {}, sentencepiece_encoder(bytes, where)};
  const auto& model = std::get<sentencepiece_encoder>(parts.encoder).processor();
  for (int id = 0; id < model.GetPieceSize(); ++id) {
    const std::string& word = model.IdToPiece(id);
    std::string piece;
    if (model.IsControl(id)) {
      parts.added.add({word, id, true});
    } else if (model.IsUnknown(id)) {
      piece = replacement_character;
    } else if (model.IsByte(id)) {
      piece = std::string(1, static_cast<char>(byte_of(word)));
    } else if (!model.IsUnused(id)) {
      piece = replaced(word, space_mark, " ");
    }
    parts.pieces.push_back(std::move(piece));
  }
  const auto mark_of = [&](token_id token) { return token < 0 ? std::string() : model.IdToPiece(token); };
  parts.begin = model.bos_id();
  parts.begin_mark = mark_of(model.bos_id());
  parts.end_mark = mark_of(model.eos_id());
  if (model.eos_id() >= 0) parts.add_end(model.eos_id());
  parts.add_named_ends();
  return parts;
}

}  // namespace espalier::detail
