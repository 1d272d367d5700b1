// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/row_processor.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/static/unset_numbers.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/drafter/nodes/node_checks.hpp"
#include "espalier/drafter/translation/other_vocabulary.hpp"
#include "espalier/drafter/translation/text_cutter.hpp"
#include "espalier/drafter/translation/vocabulary_map.hpp"

namespace espalier {

//! Options of recut.
struct recut_options {
  //! number of the draft's tokens that are known behind a token before it is drafted, since the text behind a token can
  //! change where it is cut
  int lookahead = 1;
  int length = 32;  //!< tokens of the draft that are written ahead of a text, at most

  static constexpr void describe(auto see) {
    see(option{"lookahead", &recut_options::lookahead, "the draft's tokens behind a drafted token", 0, 64});
    see(option{"length", &recut_options::length, "the draft's tokens ahead of the text, at most", 1, 1024});
  }
};

//! Drafts for a target with a drafter of another vocabulary, by way of the text: the inner drafter goes on with its
//! most probable tokens, and their text is cut into the target's tokens. So tokens that only the target has are
//! drafted, too, and words are cut as the target's tokenizer cuts them; but there is one run of tokens, and no
//! alternatives.
//!
//! The row of a node of the run gives its next token the probability that the inner drafter gives to its tokens that
//! begin in this token. The rest is shared evenly by all tokens, as is the whole row of any other node, and of a node
//! at the end of the run. So the rows are distributions like any other drafter's, and every verifier stays lossless;
//! but they are made for trees that follow the greatest probabilities, with verifiers that do not read the rows
//! (greedy, target_only). The text's processor changes the logarithms of a row, unless it forbids all of it.
//!
//! The inner drafter follows the text as the draft's tokenizer cuts it, in pieces of some 256 bytes that end before a
//! space (of 4096 bytes where there is none), so that only the last piece is cut again when the text grows. Tokens that
//! are no text are translated by vocabulary_map::cut, and a piece that the draft's tokenizer cannot give back byte for
//! byte is translated token by token. The inner drafter keeps all rows in its cache that are still rows of the text:
//! those of its own drafted tokens where the target has written the same text, and those ahead of it. While the text
//! ends within a character of several bytes, nothing is drafted. A text that is too long is followed from a later
//! place, as by `translated`.
//!
//! The inner drafter is kept by reference when given as an lvalue, by value otherwise; the map and the tokenizers must
//! outlive this object.
//!
//! Complexity  propose: a pass of the inner drafter for each of its tokens that a drafted token needs and that is not
//!             known from the round before; O(vocabulary) for each node; commit: O(text), and cutting the last piece
//! Law         as StepDrafter and ProcessingDrafter
//! Errors      option_error for options out of range, or if the inner drafter has another vocabulary than the map;
//!             input_error for a token that is not in the target's vocabulary; the inner drafter's errors
//! Source      Timor et al., Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
//!             Vocabularies, string-level exact match. Deviations: the draft's text is a function of the committed text
//!             alone, and what was drafted beyond the accepted tokens is kept where it fits
template <class DrafterT, CutsText DraftWordsT, CutsText WordsT>
class recut {
  using inner_type = std::remove_reference_t<DrafterT>;
  static_assert(StepDrafter<inner_type>, "the first argument must be a StepDrafter");
  using number = std::remove_cvref_t<decltype(std::declval<inner_type&>().rows().row(root_node)[0])>;

 public:
  recut(DrafterT&& inner, const vocabulary_map& map, const DraftWordsT& draft_words, const WordsT& words,
        const recut_options& options = {})
      : inner_(std::forward<DrafterT>(inner)),
        map_(&map),
        options_(require_options(options)),
        of_draft_(draft_words),
        of_target_(words),
        own_(options.length) {
    if (inner_.vocab_size() != map.draft_size()) {
      raise<option_error>("the drafter has a vocabulary of ", inner_.vocab_size(),
                          " tokens, but the map was made for one of ", map.draft_size(), ".");
    }
    for (const auto& s : map.shared())
      if (draft_words.piece(s.draft).empty()) marks_.emplace(s.draft, s.target);
  }

  //! Returns another drafter of the same kind, over the drafter that drafter_for_text() makes of the inner one.
  auto for_text(std::int32_t sequence) {
    return espalier::recut(drafter_for_text(inner_, sequence), *map_, of_draft_.words(), of_target_.words(), options_);
  }

  std::int32_t vocab_size() const { return map_->target_size(); }
  std::int32_t capacity() const { return (std::numeric_limits<std::int32_t>::max)(); }

  void reserve(std::int32_t max_nodes) {
    inner_.reserve(options_.length);
    const std::size_t nodes = (std::max)(static_cast<std::size_t>(max_nodes) + 1, row_of_.size());
    row_of_.resize(nodes, -1);
    renumbered_.resize(nodes);
    place_of_.resize(nodes);
    rows_.resize(nodes * static_cast<std::size_t>(vocab_size()));
  }

  void begin(std::span<const token_id> context) {
    text_.clear();
    closed_.clear();
    n_closed_ = 0;
    open_.clear();
    for (const token_id t : context)
      push(t);
    follow(in_draft());
    close_round();
  }

  bool read_prompt(std::int32_t n) requires PromptDrafter<inner_type> { return inner_.read_prompt(n); }

  void process_rows(row_processor<number> process) {
    process_ = process;
    if (process_) logits_.resize(static_cast<std::size_t>(vocab_size()));
  }

  void propose(tree_view tree, std::span<const node_id> nodes) {
    if (detail::opens_round(nodes, row_of_.size())) {
      open_round();
    } else {
      for (const node_id u : nodes)
        detail::require_askable(tree, u, row_of_.size(), [this](node_id a) { return row_of_[at(a)] >= 0; });
    }
    for (const node_id u : nodes) {
      if (u != root_node) {
        const std::int32_t before = place_of_[at(tree.parent[u])];
        const bool follows = before >= 0 && knows(before) && run_[at(before)].token == tree.token[u];
        place_of_[at(u)] = follows ? before + 1 : -1;
      }
      const std::span<number> row(rows_.get() + std::ptrdiff_t{n_rows_} * vocab_size(), at(vocab_size()));
      make(place_of_[at(u)], row);
      if (process_ && !detail::process_distribution(process_, tree, u, row, logits_)) make(place_of_[at(u)], row);
      row_of_[at(u)] = n_rows_++;
    }
  }

  node_rows<number> rows() const { return {{rows_.get(), n_rows_, vocab_size()}, row_of_.data()}; }

  void renumber(std::span<const node_id> was) { detail::renumber(row_of_, renumbered_, was); }

  void commit(tree_view tree, verdict v) {
    committed_.clear();
    append_committed(committed_, tree, v);
    for (const token_id t : committed_)
      push(t);
    go_on(in_draft());
    close_round();
  }

  double forward_seconds() const { return forward_seconds_of(inner_); }

 private:
  // A token of the draft ahead of the text.
  struct ahead_token {
    token_id token;
    double probability;
    std::size_t end;  // number of bytes from the end of the text to the end of the token
  };

  // A token of the target that is drafted.
  struct run_token {
    token_id token;
    double probability;
  };

  static constexpr std::size_t piece_bytes = 256;

  static std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

  // Adds a token to the text.
  void push(token_id t) {
    if (t < 0 || t >= vocab_size())
      raise<input_error>("the text has token ", t, ", but the target a vocabulary of ", vocab_size(), " tokens.");
    const std::string_view bytes = of_target_.words().piece(t);
    const std::span<const token_id> cut = map_->cut(t);
    const bool begins = map_->begin() >= 0 && (cut.empty() || cut[0] != map_->begin());
    if (text_.empty() && begins) closed_.push_back(map_->begin());
    const bool is_word = bytes.starts_with(' ') && !open_.empty() && open_.back() != ' ';
    const bool is_long = open_.size() >= (is_word ? piece_bytes : 16 * piece_bytes);
    if (bytes.empty() || (is_long && detail::whole_characters(open_) == open_.size())) close_piece();
    text_.push_back(t);
    open_ += bytes;
    if (bytes.empty()) {
      closed_.insert(closed_.end(), cut.begin(), cut.end());
      ++n_closed_;
    }
  }

  // Adds the open piece of the text, whose bytes are in open_, to the pieces that are not cut again.
  void close_piece() {
    const std::vector<token_id> cut = cut_open();
    closed_.insert(closed_.end(), cut.begin(), cut.end());
    open_.clear();
    n_closed_ = text_.size();
  }

  // Returns the draft's tokens of the open piece, as far as its characters are whole.
  std::vector<token_id> cut_open() const {
    const std::string_view whole = std::string_view(open_).substr(0, detail::whole_characters(open_));
    if (whole.empty()) return {};
    std::vector<token_id> cut = of_draft_.cut(whole);
    if (!cut.empty()) return cut;
    for (std::size_t i = n_closed_; i < text_.size(); ++i) {
      const std::span<const token_id> of_token = map_->cut(text_[i]);
      cut.insert(cut.end(), of_token.begin(), of_token.end());
    }
    return cut;
  }

  // Returns the text in the draft's tokens.
  std::vector<token_id> in_draft() const {
    std::vector<token_id> all = closed_;
    const std::vector<token_id> cut = cut_open();
    all.insert(all.end(), cut.begin(), cut.end());
    return all;
  }

  std::size_t first_kept(std::size_t n) const {
    return detail::first_followed(n, inner_.capacity() - 2 * options_.length - 1);
  }

  // Makes the inner drafter follow this text, with nothing ahead of it.
  void follow(std::vector<token_id> text) {
    if (text.empty() && !text_.empty()) text.push_back(0);
    followed_ = std::move(text);
    n_text_ = followed_.size();
    first_ = first_kept(n_text_);
    inner_.begin(std::span<const token_id>(followed_).subspan(first_));
    n_ahead_ = 0;
    forget_drafts();
  }

  // Makes the inner drafter go on from the text that it follows, and from its drafts, to this text.
  void go_on(std::vector<token_id> text) {
    std::vector<token_id> all = followed_;
    for (std::size_t i = n_ahead_; i < ahead_.size(); ++i)
      all.push_back(ahead_[i].token);
    const auto common =
        static_cast<std::size_t>(std::mismatch(text.begin(), text.end(), all.begin(), all.end()).first - text.begin());
    if (text.empty() || first_kept(text.size()) != first_) return follow(std::move(text));
    // The inner drafter commits those of its drafted tokens that the text has, and those ahead of it.
    const bool is_ahead = common == text.size() && common >= n_text_;
    const std::size_t end = is_ahead ? all.size() : (std::min)(common, text.size() - 1) + 1;
    if (end > followed_.size()) {
      inner_.commit(own_, {static_cast<node_id>(end - followed_.size() - 1), is_ahead ? all.back() : text[end - 1]});
    } else if (!is_ahead) {
      return follow(std::move(text));
    }
    if (!is_ahead && text.size() > end) return follow(std::move(text));
    const std::size_t n_old = n_text_;
    n_text_ = text.size();
    n_ahead_ = is_ahead ? all.size() - n_text_ : 0;
    // The tokens that are ahead of the text now, with their bytes counted from its end.
    ahead_.erase(ahead_.begin(),
                 is_ahead ? ahead_.begin() + static_cast<std::ptrdiff_t>(n_text_ - n_old) : ahead_.end());
    followed_ = is_ahead ? std::move(all) : std::move(text);
    forget_drafts();
  }

  // Forgets what was drafted in a round, but not the tokens ahead of the text that the inner drafter follows already.
  void forget_drafts() {
    ahead_.resize(n_ahead_);
    said_.clear();
    for (ahead_token& a : ahead_) {
      said_ += of_draft_.words().piece(a.token);
      a.end = said_.size();
    }
    run_.clear();
    n_said_ = 0;
    mark_ = {-1, 0};
    has_ended_ = followed_.empty() || detail::whole_characters(open_) < open_.size();
    if (!followed_.empty()) own_.reset(followed_.back());
  }

  void open_round() {
    forget_drafts();
    close_round();
    place_of_[root_node] = 0;
  }

  void close_round() {
    std::fill(row_of_.begin(), row_of_.end(), -1);
    n_rows_ = 0;
  }

  // Returns whether the run has a token at this place, and finds the tokens up to it.
  bool knows(std::int32_t place) {
    while (std::ssize(run_) <= place)
      if (!extend()) return false;
    return true;
  }

  // Adds a token to the run. Returns false if the run ends.
  bool extend() {
    if (has_ended_) return false;
    std::size_t n = 0;  // number of tokens ahead whose text is looked at
    while (n < ahead_.size() && ahead_[n].end <= n_said_)
      ++n;
    for (;;) {
      const bool is_all = n == ahead_.size() && !draft();
      if (!is_all) ++n;
      if (is_all && mark_.token < 0) break;  // there is no room to look ahead
      const std::size_t end = is_all ? said_.size() : ahead_[n - 1].end;
      const std::string_view left = std::string_view(said_).substr(n_said_, end - n_said_);
      const std::vector<token_id> cut = of_target_.cut(left.substr(0, detail::whole_characters(left)));
      if (!cut.empty()) {
        const std::size_t to = n_said_ + of_target_.words().piece(cut[0]).size(), behind = at(options_.lookahead);
        if (is_all || (n > behind && to <= ahead_[n - 1 - behind].end)) {
          run_.push_back({cut[0], probability_between(n_said_, to)});
          n_said_ = to;
          return true;
        }
      }
      if (is_all) break;
    }
    has_ended_ = true;
    const auto found = marks_.find(mark_.token);
    if (n_said_ < said_.size() || found == marks_.end()) return false;
    run_.push_back({found->second, mark_.probability});
    return true;
  }

  // Returns the product of the probabilities of the draft's tokens that begin in this range of bytes ahead of the text.
  double probability_between(std::size_t begin, std::size_t end) const {
    double product = 1;
    std::size_t from = 0;
    for (const ahead_token& a : ahead_) {
      if (from >= begin && from < end) product *= a.probability;
      from = a.end;
    }
    return product;
  }

  // Has the inner drafter write one more token ahead of the text. Returns false if there is no room for it, or if the
  // most probable token is no text; mark_ is then this token.
  bool draft() {
    if (mark_.token >= 0 || std::ssize(ahead_) == options_.length) return false;
    const node_id last[] = {own_.size() - 1};
    inner_.propose(own_, last);
    const auto row = inner_.rows().row(last[0]);
    const auto most = std::max_element(row.begin(), row.end());
    const auto token = static_cast<token_id>(most - row.begin());
    const std::string_view bytes = of_draft_.words().piece(token);
    if (bytes.empty()) {
      mark_ = {token, static_cast<double>(*most)};
      return false;
    }
    own_.append(last[0], token, 0);
    said_ += bytes;
    ahead_.push_back({token, static_cast<double>(*most), said_.size()});
    return true;
  }

  // Makes the row of a node at this place of the run; -1: the node is not in it.
  void make(std::int32_t place, std::span<number> row) {
    const bool is_known = place >= 0 && knows(place);
    const double sure = is_known ? run_[at(place)].probability : 0;
    std::fill(row.begin(), row.end(), static_cast<number>((1 - sure) / static_cast<double>(row.size())));
    if (is_known) row[at(run_[at(place)].token)] += static_cast<number>(sure);
  }

  DrafterT inner_;
  const vocabulary_map* map_;
  recut_options options_;
  detail::text_cutter<DraftWordsT> of_draft_;
  detail::text_cutter<WordsT> of_target_;
  std::unordered_map<token_id, token_id> marks_;  // the target's tokens of the draft's shared tokens that are no text
  row_processor<number> process_;
  std::vector<number> logits_;  // [target's vocabulary] the logarithms of a row, if there is a processor

  std::vector<token_id> text_;        // the text, in the target's tokens
  detail::list<token_id> committed_;  // the tokens of the last round
  std::vector<token_id> closed_;      // the draft's tokens of the pieces that are not cut again
  std::size_t n_closed_ = 0;          // tokens of text_ that these pieces have
  std::string open_;                  // the bytes of the rest of the text
  std::vector<token_id> followed_;    // the draft's tokens that the inner drafter follows: the text, and n_ahead_ more
  std::size_t n_text_ = 0, n_ahead_ = 0;
  std::size_t first_ = 0;  // number of leading tokens of followed_ that the inner drafter does not follow

  std::vector<ahead_token> ahead_;  // the first n_ahead_ are in followed_, the others are nodes 1, 2, ... of own_
  std::string said_;                // the bytes of ahead_
  tree<> own_;                      // the inner drafter's tree, a chain
  run_token mark_{-1, 0};           // the draft's token that is no text and comes next, if it is known
  std::vector<run_token> run_;      // the tokens that are drafted
  std::size_t n_said_ = 0;          // number of bytes of said_ that run_ has
  bool has_ended_ = false;          // no token follows the run

  std::vector<std::int32_t> place_of_;  // [nodes] place of the run at which a node's row is; -1: none
  std::int32_t n_rows_ = 0;
  detail::list<std::int32_t> row_of_, renumbered_;  // [nodes]
  detail::unset_numbers<number> rows_;              // [nodes][target's vocabulary]
};

template <class DrafterT, class DraftWordsT, class WordsT>
recut(DrafterT&&, const vocabulary_map&, const DraftWordsT&, const WordsT&, const recut_options& = {})
    -> recut<DrafterT, DraftWordsT, WordsT>;

}  // namespace espalier
