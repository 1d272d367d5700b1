// SPDX-License-Identifier: BSL-1.0
#pragma once

#if !defined(PCRE2_CODE_UNIT_WIDTH)
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
#include <pcre2.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "espalier/core/error.hpp"

namespace espalier::detail {

// Translates a pattern from Oniguruma's syntax, in which tokenizer files write patterns, to one of PCRE2's that matches
// the same texts. Parts that mean something else in PCRE2, or are not known to mean the same, are refused.
class regex_translation {
 public:
  regex_translation(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {
    while (at_ < pattern_.size()) {
      if (pattern_[at_] == '\\') {
        escape();
      } else if (in_class_) {
        in_class();
      } else {
        outside();
      }
    }
    if (in_class_) refuse("a class without its end");
  }

  const std::string& result() const { return result_; }

 private:
  // Oniguruma's \w. PCRE2's \w has other characters, and PCRE2's \s has U+180E in addition.
  static constexpr std::string_view word_class = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

  [[noreturn]] void refuse(std::string_view what) const {
    raise<model_error>(where_, ": the pattern ", pattern_, " has ", what, ", which is not supported.");
  }

  char look(std::size_t ahead) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  void copy(std::size_t n) {
    result_ += pattern_.substr(at_, n);
    at_ += n;
  }
  void put(std::string_view text, std::size_t read) {
    result_ += text;
    at_ += read;
  }

  static bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

  void escape() {
    const char c = look(1);
    switch (c) {
      case 's':
        return put("\\p{White_Space}", 2);
      case 'S':
        return put("\\P{White_Space}", 2);
      case 'd':
        return put("\\p{Nd}", 2);
      case 'D':
        return put("\\P{Nd}", 2);
      case 'w':
        return put(in_class_ ? std::string(word_class) : "[" + std::string(word_class) + "]", 2);
      case 'W':
        if (in_class_) refuse("\\W in a class");
        return put("[^" + std::string(word_class) + "]", 2);
      case 'v':
        return put("\\x0B", 2);
      case 'r':
      case 'n':
      case 't':
      case 'f':
        return copy(2);
      case 'p':
      case 'P':
        return property();
      case 'x':
        if (look(2) == '{' ? !is_hex(look(3)) : !is_hex(look(2)) || !is_hex(look(3))) refuse("a broken \\x");
        return copy(look(2) == '{' ? 3 : 4);
      case 'u':
        for (std::size_t i = 2; i < 6; ++i)
          if (!is_hex(look(i))) refuse("a broken \\u");
        return put("\\x{" + std::string(pattern_.substr(at_ + 2, 4)) + "}", 6);
      default:
        if (is_letter(c) || (c >= '0' && c <= '9') || c == '\0') refuse(std::string("\\") + c);
        return copy(2);
    }
  }

  // Translates a property. A name of more than two letters, except Any, Alphabetic and White_Space, is a script. PCRE2
  // would take a bare name for Script_Extensions; Oniguruma means the property Script, which is sc: in PCRE2.
  void property() {
    const std::size_t end = pattern_.find('}', at_);
    if (look(2) != '{' || end == std::string_view::npos) refuse("\\p without a name in braces");
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    std::string begin = std::string(pattern_.substr(at_, 3));
    if (!name.empty() && name.front() == '^') {
      begin += '^';
      name.remove_prefix(1);
    }
    for (const char c : name)
      if (!is_letter(c) && c != '_') refuse("\\p{" + std::string(name) + "}");
    const bool is_script = name.size() > 2 && name != "Any" && name != "Alphabetic" && name != "White_Space";
    put(begin + (is_script ? "sc:" : "") + std::string(name) + "}", end + 1 - at_);
  }

  void in_class() {
    const char c = look(0);
    if (c == '[') refuse("a class within a class");
    if (c == '&' && look(1) == '&') refuse("an intersection of classes");
    if (c == ']') {
      if (at_ == class_begin_) refuse("an empty class");
      in_class_ = false;
    }
    copy(1);
  }

  void outside() {
    const char c = look(0);
    if (c == '[') {
      in_class_ = true;
      copy(look(1) == '^' ? 2 : 1);
      class_begin_ = at_;
      return;
    }
    if (c == '(' && look(1) == '*') refuse("(*");
    if (c == '(' && look(1) == '?') {
      for (const std::string_view known : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?i)"})
        if (pattern_.substr(at_, known.size()) == known && (known != "(?i)" || at_ == 0)) return copy(known.size());
      refuse("a group that begins with " + std::string(pattern_.substr(at_, 3)));
    }
    if (c == '{' && look(1) == ',') refuse("{,");
    if (c == '}' && (look(1) == '+' || look(1) == '?')) refuse(std::string("}") + look(1));
    copy(1);
  }

  std::string_view pattern_;
  const std::string& where_;
  std::string result_;
  std::size_t at_ = 0, class_begin_ = 0;
  bool in_class_ = false;
};

// A pattern of a tokenizer file, matched by PCRE2.
class regex {
 public:
  regex(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {
    const regex_translation translated(pattern_, where_);
    const std::unique_ptr<pcre2_compile_context_8, context_end> context(pcre2_compile_context_create_8(nullptr));
    pcre2_set_newline_8(context.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    PCRE2_SIZE at = 0;
    const std::string& text = translated.result();
    code_.reset(pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(text.data()), text.size(),
                                PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE, &error, &at,
                                context.get()));
    if (!code_) {
      raise<model_error>(where_, ": the pattern ", pattern_, " is not understood: ", in_words(error), ".");
    }
    has_jit_ = pcre2_jit_compile_8(code_.get(), PCRE2_JIT_COMPLETE) == 0;
  }

  // Calls visit(begin, end) for each match, in order. A match may be empty, but not at the end of the match before it.
  //
  // Pre         text is UTF-8
  // Errors      input_error if the pattern takes too many steps over the text, or matches backwards
  template <class VisitT>
  void each_match(std::string_view text, VisitT&& visit) const {
    const std::unique_ptr<pcre2_match_data_8, match_end> match(pcre2_match_data_create_8(1, nullptr));
    const std::unique_ptr<pcre2_match_context_8, limits_end> limits(pcre2_match_context_create_8(nullptr));
    pcre2_set_match_limit_8(limits.get(), 1'000'000);
    pcre2_set_heap_limit_8(limits.get(), 1U << 16U);
    const auto* subject = reinterpret_cast<PCRE2_SPTR8>(text.data());
    std::size_t last = text.size() + 1;  // end of the match before; none yet
    for (std::size_t at = 0; at <= text.size();) {
      int found = PCRE2_ERROR_JIT_STACKLIMIT;
      if (has_jit_) found = pcre2_jit_match_8(code_.get(), subject, text.size(), at, 0, match.get(), limits.get());
      if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
        found = pcre2_match_8(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match.get(),
                              limits.get());
      }
      if (found == PCRE2_ERROR_NOMATCH) return;
      if (found < 0) raise<input_error>(where_, ": the pattern ", pattern_, " fails: ", in_words(found), ".");
      const PCRE2_SIZE* ends = pcre2_get_ovector_pointer_8(match.get());
      const std::size_t begin = ends[0], end = ends[1];
      if (begin < at || end < begin) raise<input_error>(where_, ": the pattern ", pattern_, " matches backwards.");
      if (begin < end || begin != last) visit(begin, end);
      last = end;
      at = end;
      if (begin == end)  // after an empty match, go on at the next character
        do {
          ++at;
        } while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80);
    }
  }

 private:
  struct code_end {
    void operator()(pcre2_code_8* code) const { pcre2_code_free_8(code); }
  };
  struct context_end {
    void operator()(pcre2_compile_context_8* context) const { pcre2_compile_context_free_8(context); }
  };
  struct match_end {
    void operator()(pcre2_match_data_8* match) const { pcre2_match_data_free_8(match); }
  };
  struct limits_end {
    void operator()(pcre2_match_context_8* limits) const { pcre2_match_context_free_8(limits); }
  };

  static std::string in_words(int error) {
    std::array<PCRE2_UCHAR8, 128> text{};
    pcre2_get_error_message_8(error, text.data(), text.size());
    return reinterpret_cast<const char*>(text.data());
  }

  std::string pattern_, where_;
  std::unique_ptr<pcre2_code_8, code_end> code_;
  bool has_jit_ = false;
};

// The treatment of the parts of a text that a pattern matches.
enum class split_behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct split_step {
  regex pattern;
  split_behavior behavior = split_behavior::isolated;
  bool inverted = false;  // swaps the matches and the parts between them
};

// A change of each word between two cuts: spaces are replaced, and a word that does not begin with `prefix` gets it.
struct spelling_step {
  std::string spelled_space, prefix;
};

// Cuts a text into the words within which tokens are merged: each step cuts the words of the step before, or changes
// them.
class text_splitter {
 public:
  void add(split_step cutting) { steps_.push_back(std::move(cutting)); }
  void add(spelling_step spelling) { steps_.push_back(std::move(spelling)); }
  bool empty() const { return steps_.empty(); }

  // Returns the words of a text that is not empty, in order. They are parts of `text`, or of `memory`, which gets the
  // changed words.
  std::vector<std::string_view> split(std::string_view text, std::string& memory) const {
    std::vector<std::string_view> words{text}, next;
    std::vector<part> parts;
    for (const step& one : steps_) {
      if (const auto* spelling = std::get_if<spelling_step>(&one)) {
        spell(*spelling, words, memory);
        continue;
      }
      const split_step& cutting = std::get<split_step>(one);
      next.clear();
      for (const std::string_view word : words) {
        parts.clear();
        cut(cutting, word, parts);
        join(cutting.behavior, parts);
        for (const part& p : parts)
          if (p.begin < p.end) next.push_back(word.substr(p.begin, p.end - p.begin));
      }
      words.swap(next);
    }
    return words;
  }

 private:
  using step = std::variant<split_step, spelling_step>;

  struct part {
    std::size_t begin, end;
    bool is_match;
  };

  // Changes all words. They may be parts of `memory` before, and are so afterwards.
  static void spell(const spelling_step& step, std::vector<std::string_view>& words, std::string& memory) {
    std::string spelled;
    std::vector<std::size_t> ends;
    for (const std::string_view word : words) {
      const std::size_t begin = spelled.size();
      for (const char c : word)
        c == ' ' ? spelled += step.spelled_space : spelled += c;
      if (!std::string_view(spelled).substr(begin).starts_with(step.prefix)) spelled.insert(begin, step.prefix);
      ends.push_back(spelled.size());
    }
    memory = std::move(spelled);
    for (std::size_t i = 0, begin = 0; i < words.size(); begin = ends[i++])
      words[i] = std::string_view(memory).substr(begin, ends[i] - begin);
  }

  static void cut(const split_step& step, std::string_view word, std::vector<part>& parts) {
    std::size_t done = 0;
    step.pattern.each_match(word, [&](std::size_t begin, std::size_t end) {
      if (begin > done) parts.push_back({done, begin, step.inverted});
      parts.push_back({begin, end, !step.inverted});
      done = end;
    });
    if (done < word.size()) parts.push_back({done, word.size(), step.inverted});
  }

  static void join(split_behavior behavior, std::vector<part>& parts) {
    std::vector<part> joined;
    switch (behavior) {
      case split_behavior::isolated:
        return;
      case split_behavior::removed:
        std::erase_if(parts, [](const part& p) { return p.is_match; });
        return;
      case split_behavior::merged_with_previous:
        for (std::size_t i = 0; i < parts.size(); ++i) {
          if (i > 0 && parts[i].is_match && !parts[i - 1].is_match) {
            joined.back().end = parts[i].end;
          } else {
            joined.push_back(parts[i]);
          }
        }
        break;
      case split_behavior::merged_with_next:
        for (std::size_t i = 0; i < parts.size(); ++i) {
          if (i > 0 && parts[i - 1].is_match && !parts[i].is_match) {
            joined.back().end = parts[i].end;
          } else {
            joined.push_back(parts[i]);
          }
        }
        break;
      case split_behavior::contiguous:
        for (std::size_t i = 0; i < parts.size(); ++i) {
          if (i > 0 && parts[i].is_match == parts[i - 1].is_match) {
            joined.back().end = parts[i].end;
          } else {
            joined.push_back(parts[i]);
          }
        }
        break;
    }
    parts = std::move(joined);
  }

  std::vector<step> steps_;
};

}  // namespace espalier::detail
