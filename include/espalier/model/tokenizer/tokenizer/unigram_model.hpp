// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/core/util/utf8.hpp"
#include "espalier/model/tokenizer/tokenizer/byte_pair_model.hpp"

namespace espalier::detail {

// Splits words into tokens by a unigram model: of all ways to make up a word from tokens, it takes the one with the
// greatest sum of scores. A character that is no token by itself is unknown, and has a score 10 below the least.
//
// Complexity  O(n * length of the longest token * log of the number of tokens) for n bytes
// Source      Kudo, Subword Regularization, section 3.2; sums are made in double, as in Hugging Face's tokenizers
class unigram_model {
 public:
  struct scored {
    std::string text;
    token_id token;
    double score;
  };
  struct parts {
    std::vector<scored> tokens{};
    double least_score = 0.0;  // of all tokens
    token_id unknown = -1;     // token of a run of unknown characters; -1: they are left out
    // The tokens of single bytes. A run of unknown characters becomes these if all its bytes have one, else `unknown`.
    std::array<token_id, 256> bytes = no_byte_tokens();
  };

  // Memory for the work on one word after the other.
  struct workspace {
    struct node {
      double score = -std::numeric_limits<double>::infinity();
      std::size_t begin = 0;  // where the token begins that ends here
      token_id token = -1;    // -1: an unknown character
    };
    std::vector<node> nodes;
    std::vector<std::pair<std::size_t, std::size_t>> path;
  };

  explicit unigram_model(parts p) : parts_(std::move(p)) {
    std::sort(parts_.tokens.begin(), parts_.tokens.end(), [](const scored& a, const scored& b) {
      return std::pair<std::string_view, token_id>(a.text, a.token) <
             std::pair<std::string_view, token_id>(b.text, b.token);
    });
  }

  // True for a token into which a byte of a character without a token is turned.
  bool falls_back_to(token_id token) const {
    return std::find(parts_.bytes.begin(), parts_.bytes.end(), token) != parts_.bytes.end();
  }

  // Appends the tokens of a word.
  //
  // Pre         the word is UTF-8
  void append(std::string_view word, workspace& work, std::vector<token_id>& tokens) const {
    auto& nodes = work.nodes;
    nodes.assign(word.size() + 1, {});
    nodes[0].score = 0.0;
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t next = at + read_utf8(word.substr(at)).bytes;
      bool is_known = false;
      each_token(word.substr(at), [&](const scored& found) {
        offer(nodes, at, at + found.text.size(), nodes[at].score + found.score, found.token);
        is_known = is_known || at + found.text.size() == next;
      });
      if (!is_known) offer(nodes, at, next, nodes[at].score + parts_.least_score - 10.0, -1);
      at = next;
    }
    work.path.clear();
    for (std::size_t end = word.size(); end > 0; end = nodes[end].begin) {
      const bool joins = nodes[end].token < 0 && !work.path.empty() && nodes[work.path.back().second].token < 0;
      if (joins) {
        work.path.back().first = nodes[end].begin;
      } else {
        work.path.emplace_back(nodes[end].begin, end);
      }
    }
    for (auto part = work.path.rbegin(); part != work.path.rend(); ++part) {
      if (nodes[part->second].token >= 0) {
        tokens.push_back(nodes[part->second].token);
      } else {
        append_unknown(word.substr(part->first, part->second - part->first), tokens);
      }
    }
  }

 private:
  static void offer(std::vector<workspace::node>& nodes, std::size_t begin, std::size_t end, double score,
                    token_id token) {
    if (score > nodes[end].score) nodes[end] = {score, begin, token};
  }

  // Calls visit(token) for each token that the text begins with, shorter ones first.
  template <class VisitT>
  void each_token(std::string_view text, VisitT&& visit) const {
    auto first = parts_.tokens.begin(), last = parts_.tokens.end();
    for (std::size_t i = 0; i < text.size() && first != last; ++i) {
      const auto byte_of = [i](const scored& of) {
        return i < of.text.size() ? static_cast<int>(static_cast<unsigned char>(of.text[i])) : -1;
      };
      const int byte = static_cast<unsigned char>(text[i]);
      first = std::partition_point(first, last, [&](const scored& of) { return byte_of(of) < byte; });
      last = std::partition_point(first, last, [&](const scored& of) { return byte_of(of) == byte; });
      if (first != last && first->text.size() == i + 1) visit(*first);
    }
  }

  void append_unknown(std::string_view text, std::vector<token_id>& tokens) const {
    const auto token_of = [&](char c) { return parts_.bytes[static_cast<unsigned char>(c)]; };
    if (std::all_of(text.begin(), text.end(), [&](char c) { return token_of(c) >= 0; })) {
      for (const char c : text)
        tokens.push_back(token_of(c));
    } else if (parts_.unknown >= 0) {
      tokens.push_back(parts_.unknown);
    }
  }

  parts parts_;
};

}  // namespace espalier::detail
