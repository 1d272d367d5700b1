// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/model/files/json_reader.hpp"
#include "espalier/model/tokenizer/tokenizer/pretokenizers.hpp"
#include "espalier/model/tokenizer/tokenizer/tokenizer_parts.hpp"

namespace espalier::detail {

// Reads a tokenizer.json of Hugging Face's tokenizers: a BPE, Unigram or WordPiece, and the parts of the format that
// such files use.
//
// Errors      model_error that names the file, the part that is not supported, and what is supported
// Source      https://github.com/huggingface/tokenizers, the fields that each component is serialised with
class tokenizer_json {
 public:
  tokenizer_json(std::string_view text, std::string where)
      : where_(std::move(where)), file_(parse_json_object(text, where_)) {}

  tokenizer_parts parts() {
    const nlohmann::json* const model = section("model");
    if (!model) raise<model_error>(where_, " lacks \"model\".");
    read_normaliser();
    read_pretokenizer();
    read_decoder();
    read_vocabulary(json_reader(*model, where_ + ": \"model\""));
    read_added();
    read_model(json_reader(*model, where_ + ": \"model\""));
    const token_id begin = read_begin();
    tokenizer_parts parts{where_, std::move(pieces_), std::move(raw_),
                          word_encoder{std::move(normalise_), std::move(normalised_), std::move(words_.prefix),
                                       std::move(words_.splitter), word_model()}};
    parts.begin = begin;
    parts.add_named_ends();
    return parts;
  }

 private:
  using json = nlohmann::json;

  const json* section(const char* key) const {
    const auto found = file_.find(key);
    if (found == file_.end() || found->is_null()) return nullptr;
    if (!found->is_object()) raise<model_error>(where_, ": \"", key, "\" is not an object.");
    return &*found;
  }

  // Calls visit(type, step) for each step of a component; the steps of a Sequence in their order.
  template <class VisitT>
  void each_step(const char* key, const json* node, const char* list, VisitT&& visit) const {
    if (!node) return;
    if (!node->is_object()) raise<model_error>(where_, ": \"", key, "\" has a part that is not an object.");
    const json_reader step(*node, where_ + ": \"" + key + "\"");
    const std::string type = step.text_or("type", "");
    if (type != "Sequence") return visit(type, step);
    const json* const steps = step.find(list);
    if (!steps || !steps->is_array()) raise<model_error>(step.where(), " lacks the list \"", list, "\".");
    for (const json& one : *steps)
      each_step(key, &one, list, visit);
  }

  void read_normaliser() {
    each_step("normalizer", section("normalizer"), "normalizers",
              [&](const std::string& type, const json_reader& step) {
                if (type == "NFC") {
                  normalise_.add(unicode_form::nfc);
                } else if (type == "NFD") {
                  normalise_.add(unicode_form::nfd);
                } else if (type == "NFKC") {
                  normalise_.add(unicode_form::nfkc);
                } else if (type == "NFKD") {
                  normalise_.add(unicode_form::nfkd);
                } else if (type == "Lowercase") {
                  normalise_.add(text_change::lower_case);
                } else if (type == "StripAccents") {
                  normalise_.add(text_change::drop_marks);
                } else if (type == "Strip") {
                  if (step.flag_or("strip_left", true)) normalise_.add(text_change::trim_left);
                  if (step.flag_or("strip_right", true)) normalise_.add(text_change::trim_right);
                } else if (type == "BertNormalizer") {
                  const bool lowers = step.flag_or("lowercase", true);
                  if (step.flag_or("clean_text", true)) normalise_.add(text_change::drop_controls);
                  if (step.flag_or("handle_chinese_chars", true)) normalise_.add(text_change::part_han);
                  if (step.flag_or("strip_accents", lowers)) normalise_.add(text_change::drop_accents);
                  if (lowers) normalise_.add(text_change::lower_case);
                } else if (type == "Precompiled") {
                  const std::string map = bytes_of_base64(step.text_or("precompiled_charsmap", ""));
                  if (!map.empty()) normalise_.add(character_map(map, step.where()));
                } else if (type == "Replace") {
                  if (const std::string pattern = regex_of(step); !pattern.empty()) {
                    normalise_.add_replacement(regex(pattern, step.where()), step.text_or("content", ""));
                  } else {
                    normalise_.add_replacement(plain_pattern(step), step.text_or("content", ""));
                  }
                } else if (type == "Prepend") {
                  normalise_.add_prefix(step.text_or("prepend", ""));
                } else {
                  unsupported(step.where(), type,
                              "NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, BertNormalizer, Precompiled, "
                              "Replace, Prepend and Sequence");
                }
              });
  }

  void read_pretokenizer() {
    each_step("pre_tokenizer", section("pre_tokenizer"), "pretokenizers",
              [&](const std::string& type, const json_reader& step) { words_.add(type, step); });
    model_.is_byte_level = words_.is_byte_level;
  }

  // Reads the decoder. A Strip, which removes the prefix of a text, is ignored: a single piece does not know whether it
  // is the first of the text, and so keeps the prefix.
  void read_decoder() {
    bool has_byte_level = false;
    each_step("decoder", section("decoder"), "decoders", [&](const std::string& type, const json_reader& step) {
      if (type == "ByteLevel") {
        has_byte_level = true;
      } else if (type == "Metaspace") {
        spelled_.emplace_back(step.text_or("replacement", space_mark.data()), " ");
      } else if (type == "Replace") {
        spelled_.emplace_back(plain_pattern(step), step.text_or("content", ""));
      } else if (type == "WordPiece") {
        continues_as_ = step.text_or("prefix", "##");
      } else if (type != "ByteFallback" && type != "Fuse" && type != "Strip") {
        unsupported(step.where(), type,
                    "ByteLevel, Metaspace, WordPiece, Replace, ByteFallback, Fuse, Strip and Sequence");
      }
    });
    if (has_byte_level != model_.is_byte_level || (has_byte_level && !spelled_.empty()))
      raise<model_error>(where_, ": \"pre_tokenizer\" and \"decoder\" must both be of ByteLevel, or neither.");
  }

  // The pattern of a Replace by a Regex; empty if it is by a String.
  static std::string regex_of(const json_reader& step) {
    const json* const pattern = step.find("pattern");
    const bool is_regex =
        pattern && pattern->is_object() && pattern->contains("Regex") && (*pattern)["Regex"].is_string();
    return is_regex ? (*pattern)["Regex"].get<std::string>() : std::string();
  }

  static std::string plain_pattern(const json_reader& step) {
    const json* const pattern = step.find("pattern");
    if (!pattern || !pattern->is_object() || !pattern->contains("String") || !(*pattern)["String"].is_string() ||
        (*pattern)["String"].get_ref<const std::string&>().empty()) {
      raise<model_error>(
          step.where(),
          ": the pattern of a Replace must be a String or, before words are cut, a Regex, that is not empty.");
    }
    return (*pattern)["String"].get<std::string>();
  }

  std::string& piece_of(token_id id) {
    if (static_cast<std::size_t>(id) >= pieces_.size()) pieces_.resize(static_cast<std::size_t>(id) + 1);
    return pieces_[static_cast<std::size_t>(id)];
  }

  void read_vocabulary(const json_reader& model) {
    // Files from before 2020 have no type.
    type_ = model.text_or("type", "BPE");
    if (type_ == "Unigram") return read_scored(model);
    if (type_ != "BPE" && type_ != "WordPiece") unsupported(model.where(), type_, "BPE, Unigram and WordPiece");
    if (const double dropout = model.number_or("dropout", 0, 0, 1); dropout > 0)
      raise<model_error>(model.where(), " has a dropout of ", dropout, ", which is not supported: it must be 0.");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (type_ == "BPE" && !model.text_or(key, "").empty())
        raise<model_error>(model.where(), " has a \"", key, "\", which is not supported: it must be empty.");
    }
    const json* const vocabulary = model.find("vocab");
    if (!vocabulary || !vocabulary->is_object())
      raise<model_error>(model.where(), " lacks \"vocab\", an object of tokens and their ids.");
    vocabulary_.reserve(vocabulary->size());
    for (const auto& [word, id] : vocabulary->items()) {
      const token_id token = read_token_id(id, word, where_);
      if (!vocabulary_.emplace(word, token).second) continue;
      piece_of(token) = model_.is_byte_level ? bytes_spelled(word) : spelled(word);
    }
  }

  // Reads the list of a Unigram: pairs of a token and its score. The token's number is its index in the list.
  void read_scored(const json_reader& model) {
    const json* const vocabulary = model.find("vocab");
    if (!vocabulary || !vocabulary->is_array() || vocabulary->size() > most_tokens)
      raise<model_error>(model.where(), " lacks \"vocab\", a list of at most ", most_tokens, " tokens and scores.");
    for (const json& entry : *vocabulary) {
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
        raise<model_error>(model.where(), ": \"vocab\" has an entry that is not a token and its score.");
      const auto token = static_cast<token_id>(pieces_.size());
      const auto& word = entry[0].get_ref<const std::string&>();
      vocabulary_.emplace(word, token);
      scores_.push_back(entry[1].get<double>());
      piece_of(token) = spelled(word);
    }
  }

  // The text that a token stands for. In a WordPiece a space stands before each token that begins a word, even before
  // the first of a text: a single piece does not know whether it is the first.
  std::string spelled(std::string word) const {
    if (!continues_as_.empty()) return word.starts_with(continues_as_) ? word.substr(continues_as_.size()) : " " + word;
    for (const auto& [from, to] : spelled_)
      word = replaced(word, from, to);
    return word;
  }

  void read_added() {
    const auto list = file_.find("added_tokens");
    if (list == file_.end() || list->is_null()) return;
    if (!list->is_array()) raise<model_error>(where_, ": \"added_tokens\" is not a list.");
    for (const json& entry : *list) {
      if (!entry.is_object()) raise<model_error>(where_, ": \"added_tokens\" has an entry that is not an object.");
      const json_reader read(entry, where_ + ": \"added_tokens\"");
      added_token token = read_added_token(read.find("id") ? *read.find("id") : json(), read);
      piece_of(token.id) = token.is_mark ? std::string() : model_.is_byte_level ? token.text : spelled(token.text);
      if (token.is_mark) marks_.push_back(token.id);
      if (token.is_mark || !read.flag_or("normalized", true)) {
        raw_.add(std::move(token));
      } else {
        token.spelled = normalise_(token.text);
        normalised_.add(std::move(token));
      }
    }
    std::sort(marks_.begin(), marks_.end());
  }

  bool is_mark(token_id token) const { return std::binary_search(marks_.begin(), marks_.end(), token); }

  std::variant<byte_pair_model, unigram_model, word_piece_model> word_model() {
    if (type_ == "Unigram") {
      unigram_model::parts parts{{}, 0.0, model_.unknown, model_.bytes};
      for (const auto& [word, token] : vocabulary_) {
        const double score = scores_[static_cast<std::size_t>(token)];
        parts.least_score = parts.tokens.empty() ? score : (std::min)(parts.least_score, score);
        parts.tokens.push_back({word, token, score});
      }
      std::erase_if(parts.tokens, [&](const auto& of) { return is_mark(of.token) || of.text.empty(); });
      return unigram_model(std::move(parts));
    }
    if (type_ != "WordPiece") return byte_pair_model(std::move(model_));
    const json_reader model(file_["model"], where_ + ": \"model\"");
    const std::string prefix = model.text_or("continuing_subword_prefix", "##");
    word_piece_model::parts parts;
    parts.unknown = model_.unknown;
    parts.most_characters = static_cast<std::size_t>(model.integer_or("max_input_chars_per_word", 100, 0, 1 << 20));
    for (const auto& [word, token] : vocabulary_) {
      if (is_mark(token)) continue;
      parts.begins.emplace(word, token);
      if (word.starts_with(prefix)) parts.continues.emplace(word.substr(prefix.size()), token);
    }
    return word_piece_model(std::move(parts));
  }

  void read_model(const json_reader& model) {
    const bool falls_back = model.flag_or("byte_fallback", false);
    for (int byte = 0; model_.is_byte_level && byte < 256; ++byte) {
      const auto found = vocabulary_.find(spelling_of(static_cast<unsigned char>(byte)));
      if (found != vocabulary_.end()) model_.bytes[static_cast<std::size_t>(byte)] = found->second;
    }
    for (const auto& [word, token] : vocabulary_) {
      if (is_mark(token)) continue;
      if (!model_.is_byte_level && is_one_character(word)) model_.characters.emplace(word, token);
      const int byte = falls_back && !model_.is_byte_level ? byte_of(word) : -1;
      if (byte >= 0) {
        model_.bytes[static_cast<std::size_t>(byte)] = token;
        piece_of(token) = std::string(1, static_cast<char>(byte));
      } else if (model.flag_or("ignore_merges", false)) {
        model_.whole.emplace(model_.is_byte_level ? bytes_spelled(word) : word, token);
      }
    }
    if (type_ == "Unigram") {
      const int last = static_cast<int>(scores_.size()) - 1;
      model_.unknown = model.integer_or("unk_id", -1, 0, last);
      if (model_.unknown >= 0) piece_of(model_.unknown) = replacement_character;
    } else if (const std::string unknown = model.text_or("unk_token", ""); !unknown.empty()) {
      const auto found = vocabulary_.find(unknown);
      if (found == vocabulary_.end())
        raise<model_error>(model.where(), ": \"unk_token\" is \"", unknown, "\", which is no token of it.");
      model_.unknown = found->second;
      piece_of(model_.unknown) = replacement_character;
    }
    model_.joins_unknown = model.flag_or("fuse_unk", false);
    if (type_ == "BPE") read_merges(model);
  }

  void read_merges(const json_reader& model) {
    const json* const merges = model.find("merges");
    if (!merges || !merges->is_array()) raise<model_error>(model.where(), " lacks the list \"merges\".");
    std::string left, right;
    for (const json& merge : *merges) {
      if (merge.is_string()) {
        const auto& both = merge.get_ref<const std::string&>();
        const std::size_t space = both.find(' ');
        left = both.substr(0, space);
        right = space == std::string::npos ? "" : both.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else {
        raise<model_error>(model.where(), ": \"merges\" has an entry that is not a pair of tokens.");
      }
      const auto rank = static_cast<std::int32_t>(model_.merges.size());
      model_.merges.push_back({merged_id(left, model), merged_id(right, model), merged_id(left + right, model), rank});
    }
  }

  token_id merged_id(const std::string& word, const json_reader& model) const {
    const auto found = vocabulary_.find(word);
    if (found == vocabulary_.end() || word.empty())
      raise<model_error>(model.where(), ": \"merges\" needs the token \"", word, "\", which \"vocab\" lacks.");
    return found->second;
  }

  // The token that the post-processor puts before a text; -1 if there is none.
  token_id read_begin() const {
    token_id begin = -1;
    each_step("post_processor", section("post_processor"), "processors",
              [&](const std::string& type, const json_reader& step) {
                if (type == "TemplateProcessing") {
                  begin = begin_of(step);
                } else if (type == "BertProcessing" || type == "RobertaProcessing") {
                  const json* const mark = step.find("cls");
                  if (!mark || !mark->is_array() || mark->size() != 2 || !(*mark)[0].is_string())
                    raise<model_error>(step.where(), " lacks \"cls\", a token and its number.");
                  begin = read_token_id((*mark)[1], (*mark)[0].get<std::string>(), where_);
                } else if (type != "ByteLevel") {
                  unsupported(step.where(), type,
                              "TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel and Sequence");
                }
              });
    return begin;
  }

  token_id begin_of(const json_reader& step) const {
    const json* const single = step.find("single");
    token_id begin = -1;
    if (!single || !single->is_array()) raise<model_error>(step.where(), " lacks the list \"single\".");
    for (const json& part : *single) {
      if (!part.is_object() || !part.contains("SpecialToken")) break;  // the text itself
      const json& name = part["SpecialToken"].is_object() ? part["SpecialToken"].value("id", json()) : json();
      const added_token* const token = name.is_string() ? raw_.find(name.get_ref<const std::string&>()) : nullptr;
      if (!token || begin >= 0)
        raise<model_error>(step.where(), ": what goes before a text must be one of \"added_tokens\".");
      begin = token->id;
    }
    return begin;
  }

  std::string where_;
  json file_;
  normaliser normalise_;
  pretokenizers words_;
  std::vector<std::pair<std::string, std::string>> spelled_;  // replacements that the decoder makes in words
  std::string continues_as_;  // the decoder's prefix of WordPiece tokens that continue a word
  std::string type_;          // of the model
  std::vector<double> scores_;
  std::unordered_map<std::string, token_id> vocabulary_;
  std::vector<std::string> pieces_;
  std::vector<token_id> marks_;  // ascending
  added_tokens raw_, normalised_;
  byte_pair_model::parts model_;
};

}  // namespace espalier::detail
