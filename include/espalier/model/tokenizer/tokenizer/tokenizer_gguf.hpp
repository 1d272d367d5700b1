// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/model/files/gguf_metadata.hpp"
#include "espalier/model/tokenizer/tokenizer/gguf_cuts.hpp"
#include "espalier/model/tokenizer/tokenizer/pretokenizers.hpp"
#include "espalier/model/tokenizer/tokenizer/tokenizer_parts.hpp"

namespace espalier::detail {

// Reads the tokenizer in a GGUF file's metadata: a BPE with merges (gpt2, gemma4, whitespace), a SentencePiece BPE
// (llama) or unigram model (t5), whose tokens have scores, or a WordPiece (bert).
//
// Errors      model_error that names the file, the key, and what is supported
// Source      https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section Tokenizer
class tokenizer_gguf {
 public:
  explicit tokenizer_gguf(const gguf_metadata& from) : from_(from) {}

  tokenizer_parts parts() {
    read_words();
    const std::string model = from_.text("tokenizer.ggml.model");
    if (model == "gpt2" || model == "gemma4" || model == "whitespace") {
      read_merged(model);
    } else if (model == "llama") {
      read_scored();
    } else if (model == "t5") {
      read_unigram();
    } else if (model == "bert") {
      read_word_pieces();
    } else {
      from_.refuse("tokenizer.ggml.model", "gpt2, gemma4, whitespace, llama, t5 or bert: others are not supported");
    }
    if (!words_model_) words_model_.emplace(byte_pair_model(std::move(model_)));
    tokenizer_parts parts{
        from_.where(), std::move(pieces_), std::move(added_),
        word_encoder{std::move(normalise_), {}, std::move(prefix_), std::move(splitter_), *std::move(words_model_)}};
    const token_id begin = token_or_none("bos_token_id");
    for (const auto& [name, key] : {std::pair{"bos_token", "bos_token_id"},
                                    {"eos_token", "eos_token_id"},
                                    {"unk_token", "unknown_token_id"},
                                    {"pad_token", "padding_token_id"}})
      if (const token_id token = token_or_none(key); token >= 0)
        parts.chat_variables[name] = words_[static_cast<std::size_t>(token)];
    parts.begin = from_.flag_or("tokenizer.ggml.add_bos_token", adds_begin_) ? begin : -1;
    for (const char* key : {"eos_token_id", "eot_token_id", "eom_token_id"})
      if (const token_id token = token_or_none(key); token >= 0) parts.add_end(token);
    parts.add_named_ends();
    parts.chat_template = from_.text_or("tokenizer.chat_template", "");
    parts.tool_template = from_.text_or("tokenizer.chat_template.tool_use", "");
    return parts;
  }

 private:
  // The kinds in tokenizer.ggml.token_type.
  enum class word_kind { normal = 1, unknown, control, user_defined, unused, byte };

  void read_words() {
    words_ = from_.texts("tokenizer.ggml.tokens");
    if (words_.empty() || words_.size() > most_tokens)
      from_.refuse("tokenizer.ggml.tokens", "a list of 1 to ", most_tokens, " texts");
    kinds_.assign(words_.size(), word_kind::normal);
    const std::string key = "tokenizer.ggml.token_type";
    if (from_.has(key)) {
      const std::vector<std::int64_t> kinds = from_.integers(key);
      if (kinds.size() != words_.size()) from_.refuse(key, "as long as tokenizer.ggml.tokens, ", words_.size());
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        if (kinds[i] < 1 || kinds[i] > 6) from_.refuse(key, "a list of whole numbers from 1 to 6");
        kinds_[i] = static_cast<word_kind>(kinds[i]);
      }
    }
    pieces_.resize(words_.size());
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const auto token = static_cast<token_id>(i);
      if (kinds_[i] == word_kind::control || kinds_[i] == word_kind::user_defined) {
        const bool is_mark = kinds_[i] == word_kind::control;
        if (!is_mark) pieces_[i] = words_[i];
        added_.add({words_[i], token, is_mark});
      } else {
        ids_.emplace(words_[i], token);
      }
    }
  }

  // Returns the token that a key names; -1 if the key is missing, or its number is -1, which many files write as an
  // unsigned number of 32 bits.
  token_id token_or_none(const char* name) const {
    const std::string key = std::string("tokenizer.ggml.") + name;
    constexpr std::int64_t unsigned_none = 0xFFFFFFFF;
    const std::int64_t token = from_.integer_or(key, -1, -1, unsigned_none);
    if (token == unsigned_none) return -1;
    return static_cast<token_id>(from_.integer_or(key, -1, -1, static_cast<std::int64_t>(words_.size()) - 1));
  }

  bool is_normal(std::size_t i) const { return kinds_[i] == word_kind::normal; }

  // Reads a BPE with a list of merges. "tokenizer.ggml.pre" names the rules by which texts are cut into words.
  void read_merged(const std::string& model) {
    const std::string pre = model == "gemma4" ? model : from_.text_or("tokenizer.ggml.pre", "default");
    const gguf_cuts* const cuts = find_gguf_cuts(pre);
    if (!cuts) from_.refuse("tokenizer.ggml.pre", "one of ", gguf_cuts_names());
    model_.is_byte_level = !cuts->is_plain;
    adds_begin_ = cuts->adds_begin;
    if (cuts->composes) normalise_.add(unicode_form::nfc);
    if (model == "whitespace") {
      if (from_.flag_or("tokenizer.ggml.normalizer.lowercase", false)) normalise_.add(text_change::lower_case);
      splitter_.add({regex("\\s+", from_.where()), split_behavior::removed});
    }
    for (const std::string_view pattern : cuts->patterns)
      if (!pattern.empty()) splitter_.add({regex(pattern, from_.where())});
    if (cuts->spells_spaces) prefix_.spelled_space = space_mark;
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const auto token = static_cast<token_id>(i);
      if (cuts->is_plain) {
        read_plain(token, cuts->spells_spaces);
      } else if (is_normal(i)) {
        pieces_[i] = bytes_spelled(words_[i]);
        if (cuts->takes_whole) model_.whole.emplace(pieces_[i], token);
      }
    }
    for (std::size_t byte = 0; model_.is_byte_level && byte < 256; ++byte)
      model_.bytes[byte] = find(spelling_of(static_cast<unsigned char>(byte)));
    read_merges();
  }

  // Reads one token of a BPE whose tokens are written in UTF-8, or as <0x0A> if they are single bytes. A word that
  // equals a token of line breaks alone becomes this token without merges.
  void read_plain(token_id token, bool spells_spaces) {
    const auto i = static_cast<std::size_t>(token);
    const std::string& word = words_[i];
    const int byte = byte_of(word);
    if (byte >= 0 && (is_normal(i) || kinds_[i] == word_kind::byte)) {
      model_.bytes[static_cast<std::size_t>(byte)] = token;
      pieces_[i] = std::string(1, static_cast<char>(byte));
    } else if (is_normal(i)) {
      pieces_[i] = spells_spaces ? replaced(word, space_mark, " ") : word;
      if (is_one_character(word)) model_.characters.emplace(word, token);
      if (word.find_first_not_of('\n') == std::string::npos) model_.whole.emplace(word, token);
    } else if (kinds_[i] == word_kind::unknown) {
      pieces_[i] = replacement_character;
      model_.unknown = token;
      model_.joins_unknown = true;
    }
  }

  void read_merges() {
    const std::string key = "tokenizer.ggml.merges";
    for (const std::string& merge : from_.texts(key)) {
      // A space at the beginning would belong to the left word; no known file has one.
      const std::size_t space = merge.find(' ', 1);
      const std::string left = merge.substr(0, space), right = space < merge.size() ? merge.substr(space + 1) : "";
      const token_id ids[] = {find(left), find(right), find(left + right)};
      if (*std::min_element(std::begin(ids), std::end(ids)) < 0)
        raise<model_error>(from_.where(), ": \"", key, "\" has \"", merge, "\", but a token of it is missing.");
      model_.merges.push_back({ids[0], ids[1], ids[2], static_cast<std::int32_t>(model_.merges.size())});
    }
  }

  token_id find(const std::string& word) const {
    const auto found = ids_.find(word);
    return found == ids_.end() ? -1 : found->second;
  }

  std::vector<float> read_scores() const {
    const std::string key = "tokenizer.ggml.scores";
    std::vector<float> scores = from_.numbers(key);
    if (scores.size() != words_.size()) from_.refuse(key, "as long as tokenizer.ggml.tokens, ", words_.size());
    for (const float score : scores)
      if (!(score == score)) from_.refuse(key, "a list of numbers");
    return scores;
  }

  // Reads the tokens of a SentencePiece model: the bytes that they stand for, and the tokens of characters and bytes.
  void read_sentence_pieces() {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const auto token = static_cast<token_id>(i);
      if (is_normal(i)) {
        pieces_[i] = replaced(words_[i], space_mark, " ");
        if (is_one_character(words_[i])) model_.characters.emplace(words_[i], token);
      } else if (kinds_[i] == word_kind::byte) {
        const int byte = byte_of(words_[i]);
        if (byte < 0) raise<model_error>(from_.where(), ": token ", i, " is of type byte, but is no <0x00> to <0xFF>.");
        pieces_[i] = std::string(1, static_cast<char>(byte));
        model_.bytes[static_cast<std::size_t>(byte)] = token;
      } else if (kinds_[i] == word_kind::unknown) {
        pieces_[i] = replacement_character;
        model_.unknown = token;
      }
    }
    if (model_.unknown < 0) model_.unknown = token_or_none("unknown_token_id");
  }

  // Reads a SentencePiece BPE, which makes the merge first that gives the token of the highest score.
  void read_scored() {
    adds_begin_ = true;
    read_sentence_pieces();
    model_.joins_unknown = true;
    add_scored_merges(ranks_of(read_scores()));
    normalise_.add_replacement(" ", std::string(space_mark));
    if (from_.flag_or("tokenizer.ggml.add_space_prefix", true))
      prefix_ = {text_prefix::when::always, std::string(space_mark), " ", true};
  }

  // Reads a SentencePiece unigram model, with the table by which it changes characters.
  void read_unigram() {
    read_sentence_pieces();
    const std::vector<float> scores = read_scores();
    unigram_model::parts parts{{}, std::numeric_limits<double>::infinity(), model_.unknown, model_.bytes};
    for (std::size_t i = 0; i < words_.size(); ++i) {
      if (!is_normal(i) || words_[i].empty()) continue;
      const auto score = static_cast<double>(scores[i]);
      parts.least_score = (std::min)(parts.least_score, score);
      parts.tokens.push_back({words_[i], static_cast<token_id>(i), score});
    }
    words_model_.emplace(unigram_model(std::move(parts)));
    const std::string key = "tokenizer.ggml.precompiled_charsmap";
    if (from_.has(key)) {
      std::string map;
      for (const std::int64_t byte : from_.integers(key))
        map += static_cast<char>(byte & 0xFF);
      if (!map.empty()) normalise_.add(character_map(map, from_.where()));
    }
    if (from_.flag_or("tokenizer.ggml.remove_extra_whitespaces", false)) normalise_.add(text_change::single_spaces);
    prefix_.spelled_space = space_mark;
    if (!from_.flag_or("tokenizer.ggml.add_space_prefix", false)) return;
    prefix_.before = text_prefix::when::always;
    prefix_.text = space_mark;
    prefix_.doubles = true;
  }

  // Reads a WordPiece, in which tokens that begin a word are written with U+2581 before them.
  void read_word_pieces() {
    adds_begin_ = true;
    word_piece_model::parts parts;
    parts.unknown = token_or_none("unknown_token_id");
    if (parts.unknown < 0) parts.unknown = added_.find("[UNK]") ? added_.find("[UNK]")->id : find("[UNK]");
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const auto token = static_cast<token_id>(i);
      if (kinds_[i] == word_kind::unknown) parts.unknown = token;
      if (!is_normal(i)) continue;
      pieces_[i] = replaced(words_[i], space_mark, " ");
      const bool begins = words_[i].starts_with(space_mark);
      (begins ? parts.begins : parts.continues).emplace(words_[i].substr(begins ? space_mark.size() : 0), token);
    }
    if (parts.unknown >= 0) pieces_[static_cast<std::size_t>(parts.unknown)] = replacement_character;
    words_model_.emplace(word_piece_model(std::move(parts)));
    const bool lowers = from_.flag_or("tokenizer.ggml.normalizer.lowercase", true);
    normalise_.add(text_change::drop_controls);
    normalise_.add(text_change::part_han);
    if (from_.flag_or("tokenizer.ggml.normalizer.strip_accents", lowers)) normalise_.add(text_change::drop_accents);
    if (lowers) normalise_.add(text_change::lower_case);
    splitter_.add({regex("\\s+", from_.where()), split_behavior::removed});
    splitter_.add({regex(punctuation_pattern, from_.where())});
  }

  // The rank of each token by falling score. Equal scores have equal ranks.
  std::vector<std::int32_t> ranks_of(const std::vector<float>& scores) const {
    std::vector<float> order(scores);
    std::sort(order.begin(), order.end(), std::greater<>());
    std::vector<std::int32_t> ranks(scores.size());
    for (std::size_t i = 0; i < scores.size(); ++i)
      ranks[i] = static_cast<std::int32_t>(std::lower_bound(order.begin(), order.end(), scores[i], std::greater<>()) -
                                           order.begin());
    return ranks;
  }

  // Adds, for each word, a merge of every pair of words into which it can be cut.
  void add_scored_merges(const std::vector<std::int32_t>& ranks) {
    constexpr std::size_t longest = 512;
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const std::string& word = words_[i];
      if (!is_normal(i)) continue;
      if (word.size() > longest)
        raise<model_error>(from_.where(), ": token ", i, " has ", word.size(), " bytes, but at most ", longest,
                           " are supported.");
      for (std::size_t at = 1; at < word.size(); ++at) {
        const token_id left = find(word.substr(0, at));
        if (left < 0 || !is_normal(static_cast<std::size_t>(left))) continue;
        const token_id right = find(word.substr(at));
        if (right < 0 || !is_normal(static_cast<std::size_t>(right))) continue;
        model_.merges.push_back({left, right, static_cast<token_id>(i), ranks[i]});
      }
    }
  }

  const gguf_metadata& from_;
  std::vector<std::string> words_, pieces_;
  std::vector<word_kind> kinds_;
  std::unordered_map<std::string, token_id> ids_;  // ids of the words that are not added tokens
  added_tokens added_;
  normaliser normalise_;
  text_prefix prefix_;
  text_splitter splitter_;
  byte_pair_model::parts model_;
  std::optional<std::variant<byte_pair_model, unigram_model, word_piece_model>> words_model_;
  bool adds_begin_ = false;
};

}  // namespace espalier::detail
