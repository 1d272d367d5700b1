// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/model/tokenizer/tokenizer/added_tokens.hpp"
#include "espalier/model/tokenizer/tokenizer/byte_pair_model.hpp"
#include "espalier/model/tokenizer/tokenizer/normaliser.hpp"
#include "espalier/model/tokenizer/tokenizer/text_splitter.hpp"
#include "espalier/model/tokenizer/tokenizer/unigram_model.hpp"
#include "espalier/model/tokenizer/tokenizer/word_piece_model.hpp"

namespace espalier::detail {

// A prefix for fragments of a text, and the rule by which fragments get it: none of them, the one at the beginning of
// the text, all, or, after the fragments are cut, each word.
struct text_prefix {
  enum class when { never, first, always };
  when before = when::never;
  std::string text{};               // the prefix; not added to a fragment or word that begins with it
  std::string spelled_space = " ";  // replacement of spaces, made before the prefix is added
  bool doubles = false;             // adds the prefix also to a fragment that begins with it
};

// Encodes the text between added tokens: it is normalised and cut into words, and a model turns each into tokens.
struct word_encoder {
  normaliser normalise;
  added_tokens added;  // tokens that are found in the normalised text; none is a mark
  text_prefix prefix;
  text_splitter splitter;
  std::variant<byte_pair_model, unigram_model, word_piece_model> model;

  // Appends the tokens of a fragment of a text. is_first: the text begins with it.
  //
  // Pre         the fragment is UTF-8 and not empty
  void append(std::string_view fragment, bool is_first, std::vector<token_id>& tokens) const {
    const std::string text = normalise(fragment);
    std::visit([&](const auto& words) { append_with(words, text, is_first, tokens); }, model);
  }

  bool falls_back_to(token_id token) const {
    return std::visit([&](const auto& words) { return words.falls_back_to(token); }, model);
  }

 private:
  template <class ModelT>
  void append_with(const ModelT& words, std::string_view text, bool is_first, std::vector<token_id>& tokens) const {
    typename ModelT::workspace work;
    added.each(
        text, {},
        [&](std::size_t begin, std::size_t end) {
          append_words(words, text.substr(begin, end - begin), is_first && begin == 0, work, tokens);
        },
        [&](token_id token) { tokens.push_back(token); });
  }

  template <class ModelT>
  void append_words(const ModelT& words, std::string_view text, bool is_first, typename ModelT::workspace& work,
                    std::vector<token_id>& tokens) const {
    std::string spelled;
    if (prefix.spelled_space != " ") text = spelled = replaced(text, " ", prefix.spelled_space);
    const bool wants =
        prefix.before == text_prefix::when::always || (prefix.before == text_prefix::when::first && is_first);
    if (wants && (prefix.doubles || !text.starts_with(prefix.text))) {
      spelled = prefix.text + std::string(text);
      text = spelled;
    }
    std::string changed;
    for (const std::string_view word : splitter.split(text, changed))
      words.append(word, work, tokens);
  }
};

}  // namespace espalier::detail
