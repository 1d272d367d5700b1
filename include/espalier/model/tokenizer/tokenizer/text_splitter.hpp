// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/model/tokenizer/tokenizer/regex.hpp"

namespace espalier::detail {

// The treatment of the parts of a text that a pattern matches.
enum class split_behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct split_step {
  regex pattern;
  split_behavior behavior = split_behavior::isolated;
  bool inverted = false;  // swaps the matches and the parts between them
};

// Cuts a text into the words within which tokens are merged: each step cuts the words of the step before.
class text_splitter {
 public:
  void add(split_step step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }

  // The words of a text that is not empty, in order.
  std::vector<std::string_view> split(std::string_view text) const {
    std::vector<std::string_view> words{text}, next;
    std::vector<part> parts;
    for (const split_step& step : steps_) {
      next.clear();
      for (const std::string_view word : words) {
        parts.clear();
        cut(step, word, parts);
        join(step.behavior, parts);
        for (const part& p : parts)
          if (p.begin < p.end) next.push_back(word.substr(p.begin, p.end - p.begin));
      }
      words.swap(next);
    }
    return words;
  }

 private:
  struct part {
    std::size_t begin, end;
    bool is_match;
  };

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

  std::vector<split_step> steps_;
};

}  // namespace espalier::detail
