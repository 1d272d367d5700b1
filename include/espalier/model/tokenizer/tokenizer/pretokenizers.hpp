// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "espalier/core/error.hpp"
#include "espalier/model/files/json_reader.hpp"
#include "espalier/model/tokenizer/tokenizer/text_splitter.hpp"
#include "espalier/model/tokenizer/tokenizer/word_encoder.hpp"

namespace espalier::detail {

// The patterns by which byte-level tokenizers cut texts. Digits are taken together in any number by GPT-2, at most
// three at a time by Llama 3, and singly by Qwen2.
inline constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// The characters that BERT and others take for punctuation: Unicode's punctuation, and the symbols of ASCII.
inline constexpr std::string_view punctuation_pattern = R"([\p{P}$+<=>^`|~])";

// A pattern that matches exactly this text.
inline std::string quoted_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    const bool is_plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                          static_cast<unsigned char>(c) >= 0x80;
    if (!is_plain) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

[[noreturn]] inline void unsupported(const std::string& where, const std::string& type, std::string_view supported) {
  raise<model_error>(where, " is of type \"", type, "\", which is not supported; supported are ", supported, ".");
}

// The pre-tokenizers of a tokenizer.json, one after the other.
struct pretokenizers {
  text_prefix prefix;
  text_splitter splitter;
  bool is_byte_level = false;

  void add(const std::string& type, const json_reader& step) {
    if (is_byte_level) raise<model_error>(step.where(), ": nothing may follow ByteLevel, but ", type, " does.");
    if (type == "ByteLevel") {
      if (step.flag_or("add_prefix_space", true)) put_first(step, {text_prefix::when::always, " ", " "});
      if (step.flag_or("use_regex", true)) splitter.add({regex(gpt2_pattern, step.where())});
      is_byte_level = true;
    } else if (type == "Digits") {
      splitter.add({regex(step.flag_or("individual_digits", false) ? "\\p{N}" : "\\p{N}+", step.where())});
    } else if (type == "Punctuation") {
      splitter.add({regex(punctuation_pattern, step.where()), behavior_of(step, "Isolated")});
    } else if (type == "WhitespaceSplit" || type == "BertPreTokenizer") {
      splitter.add({regex("\\s+", step.where()), split_behavior::removed});
      if (type[0] == 'B') splitter.add({regex(punctuation_pattern, step.where())});
    } else if (type == "Whitespace") {
      splitter.add({regex("[\\w\\x{200C}\\x{200D}]+|[^\\w\\x{200C}\\x{200D}\\s]+", step.where()),
                    split_behavior::removed, true});
    } else if (type == "Split") {
      splitter.add({regex(pattern_of(step), step.where()), behavior_of(step, ""), step.flag_or("invert", false)});
    } else if (type == "Metaspace") {
      add_metaspace(step);
    } else {
      unsupported(step.where(), type,
                  "BertPreTokenizer, ByteLevel, Digits, Metaspace, Punctuation, Split, Whitespace, WhitespaceSplit and "
                  "Sequence");
    }
  }

 private:
  // Sets a change of the text, which must come before any cut.
  void put_first(const json_reader& step, text_prefix change) {
    if (!splitter.empty() || prefix.spelled_space != " ")
      raise<model_error>(step.where(), ": a prefix or a replaced space is supported in its first step only.");
    prefix = std::move(change);
  }

  void add_metaspace(const json_reader& step) {
    const std::string mark = step.text_or("replacement", "\xE2\x96\x81");
    // Older files have add_prefix_space instead.
    const std::string scheme =
        step.text_or("prepend_scheme", step.flag_or("add_prefix_space", true) ? "always" : "never");
    auto before = text_prefix::when::never;
    if (scheme == "always") {
      before = text_prefix::when::always;
    } else if (scheme == "first") {
      before = text_prefix::when::first;
    } else if (scheme != "never") {
      raise<model_error>(step.where(), ": \"prepend_scheme\" is \"", scheme, "\", but must be always, first or never.");
    }
    if (splitter.empty()) {
      put_first(step, {before, mark, mark});
    } else if (before == text_prefix::when::first) {
      raise<model_error>(step.where(), ": the \"prepend_scheme\" first is supported in its first step only.");
    } else {
      splitter.add(spelling_step{mark, before == text_prefix::when::always ? mark : std::string()});
    }
    if (step.flag_or("split", true))
      splitter.add({regex(quoted_pattern(mark), step.where()), split_behavior::merged_with_next});
  }

  static split_behavior behavior_of(const json_reader& step, const char* otherwise) {
    const std::string name = step.text_or("behavior", otherwise);
    if (name == "Isolated") return split_behavior::isolated;
    if (name == "Removed") return split_behavior::removed;
    if (name == "MergedWithPrevious") return split_behavior::merged_with_previous;
    if (name == "MergedWithNext") return split_behavior::merged_with_next;
    if (name == "Contiguous") return split_behavior::contiguous;
    raise<model_error>(step.where(), ": \"behavior\" is \"", name,
                       "\", but must be Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous.");
  }

  static std::string pattern_of(const json_reader& step) {
    const nlohmann::json* const pattern = step.find("pattern");
    for (const char* kind : {"String", "Regex"}) {
      if (!pattern || !pattern->is_object() || !pattern->contains(kind) || !(*pattern)[kind].is_string()) continue;
      const auto& text = (*pattern)[kind].get_ref<const std::string&>();
      return kind[0] == 'S' ? quoted_pattern(text) : text;
    }
    raise<model_error>(step.where(), ": the pattern of a Split must be a String or a Regex.");
  }
};

}  // namespace espalier::detail
