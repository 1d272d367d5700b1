// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/files/cost_file.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/util/checksum.hpp"
#include "espalier/model/files/gguf_file.hpp"
#include "espalier/model/files/safetensors_shards.hpp"
#include "espalier/model/llama/block_draft_config.hpp"
#include "espalier/model/llama/draft_head_config.hpp"
#include "espalier/model/llama/draft_kind.hpp"
#include "espalier/model/llama/gguf_config.hpp"
#include "espalier/model/llama/model_config.hpp"

namespace espalier {

namespace detail {

// Returns the shape of a model, which may be a draft head or a block draft, and the paths of the files that hold its
// weights.
inline std::pair<model_config, std::vector<std::string>> files_of_model(const std::string& path) {
  const draft_kind kind = draft_kind_of(path);
  if (std::filesystem::is_regular_file(path)) {
    gguf_file file(path);
    return {kind == draft_kind::eagle3  ? read_gguf_draft_config(file, "eagle3")
            : kind == draft_kind::block ? read_gguf_draft_config(file, "dflash")
                                        : read_gguf_config(file),
            file.paths()};
  }
  const bool is_head = kind == draft_kind::eagle3 || kind == draft_kind::peagle || kind == draft_kind::mtp;
  model_config config = is_head                     ? draft_head_config::load(path)
                        : kind == draft_kind::block ? block_draft_config::load(path)
                                                    : model_config::load(path);
  if (std::filesystem::exists(path + "/model.safetensors.index.json"))
    return {std::move(config), safetensors_shards(path).paths()};
  return {std::move(config), {path + "/model.safetensors"}};
}

}  // namespace detail

//! Returns a name that tells one model from another: family, layers and width, vocabulary, and the FNV-1a hash (64
//! bits) of the files that hold its weights, such as "llama 7x384, 4096 tokens, 1f3a5b7c9d0e2f41". Draft heads and
//! block drafts have such names, too; without the vocabulary if the config gives none, as in the library's own blocks.
//!
//! Complexity  reads the files of the weights once, a piece at a time
//! Law         the same files give the same name on every machine. A changed weight changes the name; a change of
//!             config.json does so only if it changes a part of the name
//! Errors      model_error that names the file that is missing or wrong
inline std::string model_identity(const std::string& path) {
  const auto [config, files] = detail::files_of_model(path);
  std::uint64_t hash = detail::checksum({});
  std::vector<char> piece(std::size_t{1} << 20);
  for (const std::string& name : files) {
    std::ifstream file(name, std::ios::binary);
    if (!file) raise<model_error>(name, " cannot be opened.");
    while (file) {
      file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
      hash = detail::checksum(std::as_bytes(std::span(piece)).first(static_cast<std::size_t>(file.gcount())), hash);
    }
    if (!file.eof()) raise<model_error>(name, " could not be read to its end.");
  }
  const std::string tokens = config.vocab_size > 0 ? detail::in_words(config.vocab_size) + " tokens, " : std::string();
  return config.family + " " + detail::in_words(config.n_layers) + "x" + detail::in_words(config.hidden_size) + ", " +
         tokens + detail::digits_of(hash);
}

}  // namespace espalier
