// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/drafter/translation/vocabulary_map.hpp"
#include "espalier/model/files/gguf_file.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"
#include "espalier/model/tokenizer/vocabulary_map_file.hpp"
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

// Tells whether two tokenizers are one but for a hundredth of the tokens: models that were trained further may have
// renamed a few.
inline bool are_same_tokens(const espalier::tokenizer& one, const espalier::tokenizer& other) {
  const int n = (std::min)(one.size(), other.size()), n_all = (std::max)(one.size(), other.size());
  int n_others = n_all - n;
  for (int token = 0; token < n; ++token)
    n_others += one.piece(token) != other.piece(token) ? 1 : 0;
  return n_others <= n_all / 100;
}

// The bytes of each token. A token such as <0x41> has none if "A" is a token, too: texts are encoded with that one.
inline std::vector<std::string> pieces_of(const espalier::tokenizer& text, int vocab) {
  std::vector<std::string> pieces(static_cast<std::size_t>(vocab));
  std::vector<espalier::token_id> bytes;
  std::set<std::string, std::less<>> characters;
  for (int token = 0; token < (std::min)(vocab, text.size()); ++token) {
    pieces[static_cast<std::size_t>(token)] = text.piece(token);
    if (text.piece(token).size() != 1) continue;
    if (text.is_byte(token)) {
      bytes.push_back(token);
    } else {
      characters.emplace(text.piece(token));
    }
  }
  for (const espalier::token_id token : bytes)
    if (characters.contains(text.piece(token))) pieces[static_cast<std::size_t>(token)].clear();
  return pieces;
}

// Makes tokens without text, or that begin or end texts, shared by their roles: first special tokens of one mark, then
// the tokens that texts begin with, then those that end texts.
inline void share_roles(espalier::vocabulary_map& map, const espalier::tokenizer& text,
                        const espalier::tokenizer& of_draft) {
  std::map<std::string, espalier::token_id> draft_marks;
  for (const auto& [token, mark] : of_draft.marks())
    draft_marks.emplace(mark, token);
  for (const auto& [token, mark] : text.marks())
    if (const auto found = draft_marks.find(mark); found != draft_marks.end()) map.share(token, found->second);
  if (of_draft.begin_of_text() >= 0) {
    map.begin_with(of_draft.begin_of_text());
    if (text.begin_of_text() >= 0) map.share(text.begin_of_text(), of_draft.begin_of_text());
  }
  for (const espalier::token_id end : text.ends_of_text())
    for (const espalier::token_id draft_end : of_draft.ends_of_text())
      map.share(end, draft_end);
}

}  // namespace detail

//! The tokenizer of the model at `given`, whose resolved paths are `paths`.
//!
//! Errors      espalier::model_error if it does not fit the target, or the draft has no tokenizer and rows for another
//!             number of tokens
inline espalier::tokenizer model_tokenizer(const std::string& given, const model_paths& paths) {
  const int vocab = espalier::model_files::open(paths.model).config.vocab_size;
  espalier::tokenizer text = detail::tokenizer_of(given);
  if (!paths.draft.empty() && !detail::has_tokenizer(paths.draft)) {
    const int of_draft = espalier::model_files::open(paths.draft).config.vocab_size;
    // Models of one tokenizer are padded to different numbers of rows.
    if (std::abs(vocab - of_draft) > vocab / 100) {
      espalier::raise<espalier::model_error>("the target ", paths.model, " has a vocabulary of ", vocab,
                                             " and the draft ", paths.draft, " one of ", of_draft,
                                             "; without a tokenizer of its own the draft must have the target's, so ",
                                             "the same size but for padding.");
    }
  }
  detail::require_fitting_tokenizer(text, vocab, given);
  return text;
}

//! The translation of the target's tokens, whose tokenizer is `text`, read from the path `given`, into the draft's;
//! none if both have one tokenizer. Special tokens are shared by their roles, and texts begin with the draft's token
//! for that. The map is read from the file paths.map if that exists, and else made, and written there if paths.map is
//! named.
//!
//! Errors      espalier::model_error if the draft's tokenizer does not fit the draft; for a file that is no map between
//!             these tokenizers; and if paths.map is named although both have one tokenizer
inline std::optional<espalier::vocabulary_map> map_to_draft(const espalier::tokenizer& text, const std::string& given,
                                                            const model_paths& paths) {
  const auto same = [&]() -> std::optional<espalier::vocabulary_map> {
    if (paths.map.empty() && paths.translation == translation_kind::automatic) return {};
    espalier::raise<espalier::model_error>("the draft ", paths.draft, " has the target's tokenizer: there is nothing ",
                                           "that --", paths.map.empty() ? "translation" : "map", " could say.");
  };
  if (!detail::has_tokenizer(paths.draft) || std::filesystem::equivalent(paths.model, paths.draft)) return same();
  const int vocab = espalier::model_files::open(paths.model).config.vocab_size;
  const int draft_vocab = espalier::model_files::open(paths.draft).config.vocab_size;
  espalier::map_origin origin;
  if (!paths.map.empty()) {
    origin = {espalier::tokenizer_identity(given), espalier::tokenizer_identity(paths.draft)};
    if (std::filesystem::exists(paths.map)) return espalier::load_vocabulary_map(paths.map, origin, vocab, draft_vocab);
  }
  const espalier::tokenizer of_draft = detail::tokenizer_of(paths.draft);
  if (detail::are_same_tokens(text, of_draft)) return same();
  detail::require_fitting_tokenizer(of_draft, draft_vocab, paths.draft);
  espalier::vocabulary_map map(detail::pieces_of(text, vocab), detail::pieces_of(of_draft, draft_vocab));
  detail::share_roles(map, text, of_draft);
  if (!paths.map.empty()) espalier::save_vocabulary_map(map, origin, paths.map);
  return map;
}

//! Tells whether the draft's text is cut again, rather than its tokens translated: if paths.translation says so, or
//! says nothing and fewer than a quarter of the tokens of the smaller vocabulary are shared.
//!
//! Errors      espalier::model_error if tokens are to be translated and so few are shared
inline bool cuts_text(const espalier::vocabulary_map& map, const model_paths& paths) {
  if (paths.translation == translation_kind::text) return true;
  const std::size_t n = map.shared().size();
  if (4 * n >= static_cast<std::size_t>((std::min)(map.target_size(), map.draft_size()))) return false;
  if (paths.translation == translation_kind::automatic) return true;
  espalier::raise<espalier::model_error>(
      "the draft ", paths.draft, " and the target ", paths.model, " share ", n, " tokens, of ", map.draft_size(),
      " and ", map.target_size(), "; with --translation tokens they must share a quarter of the smaller vocabulary.");
}

}  // namespace models
