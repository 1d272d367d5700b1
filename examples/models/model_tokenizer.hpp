// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "espalier/core/error.hpp"
#include "espalier/model/files/gguf_file.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"
#include "model_paths.hpp"

namespace models {

namespace detail {

inline espalier::tokenizer tokenizer_of(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) return espalier::tokenizer::load(path);
  return espalier::tokenizer::from_gguf(espalier::gguf_file(path).metadata());
}

inline bool has_tokenizer(const std::string& path) {
  if (std::filesystem::is_regular_file(path)) return espalier::gguf_file(path).metadata().has("tokenizer.ggml.tokens");
  return std::filesystem::exists(path + "/tokenizer.json") || std::filesystem::exists(path + "/tokenizer.model");
}

// Checks that a tokenizer fits a vocabulary. Models have a few rows more than their tokenizer has tokens.
inline void require_fitting_tokenizer(const espalier::tokenizer& text, int vocab, const std::string& of) {
  if (text.size() > vocab || 2 * text.size() < vocab) {
    espalier::raise<espalier::model_error>("the tokenizer of ", of, " has ", text.size(),
                                           " tokens, but the model a vocabulary of ", vocab,
                                           "; it must have at most so many, and at least half.");
  }
}

// Checks that the draft's tokens mean the same as the target's. Models that were trained further may have renamed a
// few.
inline void require_same_tokens(const espalier::tokenizer& text, const model_paths& paths) {
  const espalier::tokenizer of_draft = tokenizer_of(paths.draft);
  const int n = (std::min)(text.size(), of_draft.size()), n_all = (std::max)(text.size(), of_draft.size());
  int n_others = n_all - n;
  for (int token = 0; token < n; ++token)
    n_others += text.piece(token) != of_draft.piece(token) ? 1 : 0;
  if (n_others > n_all / 100) {
    espalier::raise<espalier::model_error>("the draft ", paths.draft, " has another vocabulary than the target ",
                                           paths.model, ": of ", n_all, " tokens ", n_others,
                                           " are other texts; they must be the same.");
  }
}

}  // namespace detail

//! The tokenizer of the model at `given`, whose resolved paths are `paths`.
//!
//! Errors      espalier::model_error if it does not fit the target, or the draft has other tokens than the target
inline espalier::tokenizer model_tokenizer(const std::string& given, const model_paths& paths) {
  const int vocab = espalier::model_files::open(paths.model).config.vocab_size;
  espalier::tokenizer text = detail::tokenizer_of(given);
  if (!paths.draft.empty()) {
    const int of_draft = espalier::model_files::open(paths.draft).config.vocab_size;
    // Models of one tokenizer are padded to different numbers of rows.
    const bool has_own = detail::has_tokenizer(paths.draft);
    if (!has_own && std::abs(vocab - of_draft) > vocab / 100) {
      espalier::raise<espalier::model_error>("the target ", paths.model, " has a vocabulary of ", vocab,
                                             " and the draft ", paths.draft, " one of ", of_draft,
                                             "; they must have one tokenizer, so the same size but for padding.");
    }
    if (!std::filesystem::equivalent(paths.model, paths.draft) && has_own) detail::require_same_tokens(text, paths);
  }
  detail::require_fitting_tokenizer(text, vocab, given);
  return text;
}

}  // namespace models
