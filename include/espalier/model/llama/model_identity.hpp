// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/model/llama/model_config.hpp"

namespace espalier {

//! A name that tells one model from another: family, layers and width, vocabulary, and the FNV-1a hash (64 bits) of its
//! weights, such as "llama 7x384, 4096 tokens, 1f3a5b7c9d0e2f41".
//!
//! Complexity  reads model.safetensors once, a piece at a time
//! Law         the same folder gives the same name on every machine; a changed weight changes it. A changed number of
//!             config.json that is not a part of the name does not
//! Errors      model_error that names the file of the folder that is missing or wrong
//! Source      Fowler, Noll and Vo, The FNV Non-Cryptographic Hash Algorithm
inline std::string model_identity(const std::string& folder) {
  const model_config config = model_config::load(folder);
  const std::string path = folder + "/model.safetensors";
  std::ifstream file(path, std::ios::binary);
  if (!file) raise<model_error>(path, " cannot be opened.");
  std::uint64_t hash = 0xCBF29CE484222325U;
  std::vector<char> piece(std::size_t{1} << 20);
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    for (std::streamsize i = 0; i < file.gcount(); ++i)
      hash = (hash ^ static_cast<unsigned char>(piece[static_cast<std::size_t>(i)])) * 0x100000001B3U;
  }
  if (!file.eof()) raise<model_error>(path, " could not be read to its end.");
  constexpr const char* digits = "0123456789abcdef";
  std::string in_digits;
  for (int shift = 60; shift >= 0; shift -= 4)
    in_digits += digits[hash >> shift & 15U];
  const char* family = config.family == model_config::family_type::llama ? "llama" : "gpt_neox";
  return family + (" " + detail::in_words(config.n_layers)) + "x" + detail::in_words(config.hidden_size) + ", " +
         detail::in_words(config.vocab_size) + " tokens, " + in_digits;
}

}  // namespace espalier
