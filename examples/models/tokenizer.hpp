// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <sentencepiece_processor.h>

#include <charconv>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"

namespace models {

//! Text to tokens and back, through SentencePiece.
//!
//! Law         decode(tokens) is the concatenation of piece(token), byte for byte, so that text may be shown token by
//!             token; a character may be spread over several byte tokens
//! Errors      espalier::model_error for a file that is missing or no SentencePiece model
class tokenizer {
 public:
  static tokenizer load(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) espalier::raise<espalier::model_error>(path, " cannot be opened.");
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
    if (bytes.empty() || !processor->LoadFromSerializedProto(bytes).ok())
      espalier::raise<espalier::model_error>(path, " is not a SentencePiece model.");
    return tokenizer(std::move(processor));
  }

  int size() const { return static_cast<int>(pieces_.size()); }
  //! The token that begins a text, or -1 where the model has none.
  espalier::token_id begin_of_text() const { return processor_->bos_id(); }
  //! The token that ends a text, or -1.
  espalier::token_id end_of_text() const { return processor_->eos_id(); }

  //! The tokens of a text. Bytes that are not UTF-8 are replaced by U+FFFD.
  std::vector<espalier::token_id> encode(std::string_view text) const {
    std::vector<int> ids;
    processor_->Encode({text.data(), text.size()}, &ids).IgnoreError();
    return {ids.begin(), ids.end()};
  }

  //! The tokens of a text that a model is to continue: the first token of a text before it, where the model has one.
  std::vector<espalier::token_id> encode_prompt(std::string_view text) const {
    std::vector<espalier::token_id> tokens = encode(text);
    if (begin_of_text() >= 0) tokens.insert(tokens.begin(), begin_of_text());
    return tokens;
  }

  //! The bytes that a token stands for; none for a token beyond the vocabulary or one that is no text.
  std::string_view piece(espalier::token_id token) const {
    if (token < 0 || token >= size()) return {};
    return pieces_[static_cast<std::size_t>(token)];
  }

  std::string decode(std::span<const espalier::token_id> tokens) const {
    std::string text;
    for (const espalier::token_id token : tokens)
      text += piece(token);
    return text;
  }

 private:
  explicit tokenizer(std::unique_ptr<sentencepiece::SentencePieceProcessor> processor)
      : processor_(std::move(processor)) {
    pieces_.reserve(static_cast<std::size_t>(processor_->GetPieceSize()));
    for (int id = 0; id < processor_->GetPieceSize(); ++id)
      pieces_.push_back(bytes_of(id));
  }

  std::string bytes_of(int id) const {
    if (processor_->IsControl(id) || processor_->IsUnused(id)) return {};
    if (processor_->IsUnknown(id)) return "\xEF\xBF\xBD";  // U+FFFD
    const std::string& piece = processor_->IdToPiece(id);
    if (processor_->IsByte(id)) {  // <0x0A>
      unsigned byte = 0;
      std::from_chars(piece.data() + 3, piece.data() + 5, byte, 16);
      return {static_cast<char>(byte)};
    }
    constexpr std::string_view space_mark = "\xE2\x96\x81";  // U+2581
    std::string bytes = piece;
    for (std::size_t at = bytes.find(space_mark); at != std::string::npos; at = bytes.find(space_mark, at + 1))
      bytes.replace(at, space_mark.size(), 1, ' ');
    return bytes;
  }

  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  std::vector<std::string> pieces_;
};

}  // namespace models
