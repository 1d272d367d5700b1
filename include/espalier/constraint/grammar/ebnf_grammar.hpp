// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <dlpack/dlpack.h>
#include <xgrammar/xgrammar.h>

#include "espalier/concepts/constraint.hpp"
#include "espalier/constraint/vocabulary_trie.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! A sequence of tokens from the beginning of a text, stored as a node in a tree of sequences: sequences that begin
//! with it share its nodes. The empty path is the root.
//!
//! Complexity  each member: O(1); the destructor of the last copy of a path frees the nodes that no other path needs,
//!             without recursion
class token_path {
 public:
  token_path() = default;
  token_path(const token_path& before, token_id token) : last_(std::make_shared<const node>(before.last_, token)) {}

  bool empty() const { return !last_; }
  std::int32_t size() const { return last_ ? last_->size : 0; }

  //! before() is the path without its last token, token() is the last token.
  //!
  //! Pre         !empty()
  token_path before() const { return token_path(last_->before); }
  token_id token() const { return last_->token; }

  //! The address of the path's last node; null for the empty path. Only copies of one path have the same address: two
  //! paths that were made separately of the same tokens have different addresses.
  const void* identity() const { return last_.get(); }
  friend bool operator==(const token_path& a, const token_path& b) { return a.last_ == b.last_; }

 private:
  struct node {
    node(std::shared_ptr<const node> b, token_id t)
        : before(std::move(b)), token(t), size(before ? before->size + 1 : 1) {}
    node(const node&) = delete;
    node& operator=(const node&) = delete;
    // Frees the nodes before this one in a loop instead of by recursion: a node that is freed meanwhile hands the node
    // before it to that loop.
    ~node() {
      static thread_local std::shared_ptr<const node>* next = nullptr;
      if (next != nullptr) {
        *next = std::move(before);
        return;
      }
      std::shared_ptr<const node> last = std::move(before), left;
      for (next = &left; last; last = std::move(left))
        last.reset();
      next = nullptr;
    }

    std::shared_ptr<const node> before;
    token_id token;
    std::int32_t size;
  };

  explicit token_path(std::shared_ptr<const node> last) : last_(std::move(last)) {}

  std::shared_ptr<const node> last_;
};

//! The Constraint of a grammar, by the library xgrammar: it allows the texts that the rule `root` derives. Rules may
//! contain themselves, as matching brackets require.
//!
//!   constrained(ebnf_grammar("root ::= \"(\" root \")\" | [a-z]+", vocabulary));
//!
//! Rules are name ::= expression. An expression is made of "texts" with escapes, classes [a-z] and [^...], names,
//! groups, |, * + ? {m} {m,} {m,n}, and comments after #. This is the notation of xgrammar, much like that of
//! llama.cpp's grammars.
//!
//! A state is the path of tokens that leads to it. advance() only allocates the last node of that path. When allowed()
//! is called, xgrammar's matcher moves to the state: back to the last node that its own path shares with the state's,
//! and forward from there. Each copy of the constraint has a matcher of its own, so several threads may use one copy
//! each.
//!
//! Complexity  construction: the masks of all positions in the grammar, with a thread for each core. allowed: one
//!             look-up for a state whose mask is kept; else the move, in O(bytes of the tokens on the way) if the
//!             grammar is unambiguous, and one mask. At most max_masks masks are kept, of vocab / 8 bytes each; when
//!             there are that many, all are dropped before the next is made. Copying: O(bytes of the matcher's path)
//! Law         that of Constraint. A rule that never ends, such as root ::= "a" root, gives texts that have no end
//! Errors      input_error for a text that is no grammar, with line and column and what xgrammar expects there, for a
//!             rule that is missing, and if the grammar allows none of the vocabulary's tokens at the beginning of a
//!             text
//! Source      Dong et al., XGrammar (arXiv 2411.15100)
class ebnf_grammar {
 public:
  using state_type = token_path;
  static constexpr std::size_t max_masks = 256;

  ebnf_grammar(std::string_view grammar, vocabulary_trie vocabulary, const std::string& root = "root")
      : vocabulary_(std::move(vocabulary)),
        matcher_(compiled(grammar, vocabulary_, root)),
        masks_decide_(grammar.find("max_tokens") != std::string_view::npos) {
    const std::span<const std::uint32_t> first = allowed(start());
    if (std::all_of(first.begin(), first.end(), [](std::uint32_t word) { return word == 0; }))
      raise<input_error>("the grammar has no text that begins with any of the vocabulary's tokens.");
  }

  ebnf_grammar(const ebnf_grammar& other)
      : vocabulary_(other.vocabulary_),
        matcher_(other.matcher_.Fork()),
        at_(other.at_),
        masks_decide_(other.masks_decide_) {}
  ebnf_grammar(ebnf_grammar&&) = default;
  ebnf_grammar& operator=(const ebnf_grammar& other) {
    if (this != &other) *this = ebnf_grammar(other);
    return *this;
  }
  ebnf_grammar& operator=(ebnf_grammar&&) = default;
  ~ebnf_grammar() = default;

  state_type start() const { return {}; }
  state_type advance(const state_type& state, token_id token) const { return {state, token}; }

  std::span<const std::uint32_t> allowed(const state_type& state) {
    const auto known = masks_.find(state.identity());
    if (known != masks_.end()) return known->second.words;
    if (masks_.size() >= max_masks) masks_.clear();
    mask result{state, {}};
    if (move_to(state)) fill(result.words);
    return masks_.emplace(state.identity(), std::move(result)).first->second.words;
  }

 private:
  struct mask {
    token_path state;  // kept, so that no other path can get its identity
    std::vector<std::uint32_t> words;
  };

  static xgrammar::GrammarMatcher compiled(std::string_view grammar, const vocabulary_trie& vocabulary,
                                           const std::string& root) {
    const std::size_t zero = grammar.find('\0');
    if (zero != std::string_view::npos) raise<input_error>("the grammar has a byte of zero at position ", zero, ".");
    std::vector<std::string> pieces;
    for (token_id t = 0; t < vocabulary.size(); ++t)
      pieces.push_back(vocabulary.piece(t));
    const std::vector<std::int32_t> ends(vocabulary.ends().begin(), vocabulary.ends().end());
    const int threads = (std::max)(1, static_cast<int>(std::thread::hardware_concurrency()));
    try {
      const xgrammar::TokenizerInfo tokens(pieces, xgrammar::VocabType::RAW, std::nullopt, ends);
      xgrammar::GrammarCompiler compiler(tokens, threads, false);
      return xgrammar::GrammarMatcher(compiler.CompileGrammar(std::string(grammar), root));
    } catch (const std::exception& refusal) {
      raise<input_error>("this is no grammar: ", reason(refusal.what()));
    }
  }

  // The text of an error of xgrammar, without the time and the line of xgrammar's source: "[12:34:56] /a/file.cc:78:
  // this" becomes "this.".
  static std::string reason(std::string_view what) {
    if (what.starts_with('[')) {
      const std::size_t place = what.find(".cc:");
      const std::size_t message = place == std::string_view::npos ? place : what.find(": ", place);
      if (message != std::string_view::npos) what.remove_prefix(message + 2);
    }
    while (!what.empty() && (what.back() == '\n' || what.back() == '.'))
      what.remove_suffix(1);
    return std::string(what) + ".";
  }

  // Moves the matcher to the end of a path, or as far along the path as the grammar allows. Returns true if the matcher
  // is at the end of the path and the text may go on.
  bool move_to(const token_path& target) {
    ahead_.clear();
    token_path common = target;
    for (; common.size() > at_.size(); common = common.before())
      ahead_.push_back(common);
    std::int32_t back = 0;
    for (; at_.size() > common.size(); at_ = at_.before())
      ++back;
    while (!(at_ == common)) {
      ahead_.push_back(common);
      common = common.before();
      at_ = at_.before();
      ++back;
    }
    if (back > 0) matcher_.Rollback(back);
    for (; !ahead_.empty(); ahead_.pop_back()) {
      if (!accept(ahead_.back().token())) return false;
      at_ = ahead_.back();
    }
    return !matcher_.IsTerminated();
  }

  bool accept(token_id token) {
    if (token < 0 || token >= vocabulary_.size() || matcher_.IsTerminated()) return false;
    const auto ends = vocabulary_.ends();
    if (vocabulary_.piece(token).empty() && std::find(ends.begin(), ends.end(), token) == ends.end()) return false;
    // A rule that has had its max_tokens tokens ends only when a mask is asked for, so one is made, and not used.
    if (masks_decide_) fill(unused_);
    return matcher_.AcceptToken(token);
  }

  void fill(std::vector<std::uint32_t>& words) {
    words.assign((static_cast<std::size_t>(vocabulary_.size()) + 31) / 32, 0);
    std::int64_t shape = static_cast<std::int64_t>(words.size());
    std::int64_t stride = 1;
    DLTensor tensor{words.data(), {kDLCPU, 0}, 1, xgrammar::GetBitmaskDLType(), &shape, &stride, 0};
    matcher_.FillNextTokenBitmask(&tensor);
  }

  vocabulary_trie vocabulary_;
  xgrammar::GrammarMatcher matcher_;
  token_path at_;  // the path that the matcher has taken
  bool masks_decide_;
  std::unordered_map<const void*, mask> masks_;
  std::vector<token_path> ahead_;
  std::vector<std::uint32_t> unused_;
};

static_assert(Constraint<ebnf_grammar>);

}  // namespace espalier
