// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <sentencepiece_processor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"

namespace espalier::detail {

// Encodes text with the library SentencePiece.
class sentencepiece_encoder {
 public:
  // Reads a model from its bytes.
  //
  // Errors      model_error for bytes that are no SentencePiece model
  sentencepiece_encoder(std::string_view bytes, const std::string& where)
      : processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {
    if (bytes.empty() || !processor_->LoadFromSerializedProto({bytes.data(), bytes.size()}).ok())
      raise<model_error>(where, " is not a SentencePiece model.");
  }

  const sentencepiece::SentencePieceProcessor& processor() const { return *processor_; }

  void append(std::string_view fragment, bool, std::vector<token_id>& tokens) const {
    std::vector<int> ids;
    processor_->Encode({fragment.data(), fragment.size()}, &ids).IgnoreError();
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

}  // namespace espalier::detail
