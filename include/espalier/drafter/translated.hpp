// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/row_processor.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/static/unset_numbers.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/drafter/nodes/node_checks.hpp"
#include "espalier/drafter/translation/other_vocabulary.hpp"
#include "espalier/drafter/translation/vocabulary_map.hpp"

namespace espalier {

//! Drafts for a target with a drafter of another vocabulary. The row of a node is the inner drafter's, restricted to
//! the tokens that both vocabularies have, and divided by the sum of their probabilities. So these rows are
//! distributions like any other drafter's, and every verifier stays lossless. If the inner drafter gives all
//! probability to other tokens, the row is uniform over the shared ones. The text's processor, if there is one, changes
//! the logarithms of the row; the row stays as it is if the processor forbids every token that has a probability there.
//!
//! The inner drafter follows the text in the draft's tokens, after vocabulary_map::begin() if there is one. Each of the
//! target's tokens is translated alone (vocabulary_map::cut), so the translation of what was read does not change when
//! the text grows. A node whose token is not shared, which only another drafter of a joint proposes, is shown to the
//! inner drafter as the first token of its translation, or as token 0 if that is empty. If the translated text is too
//! long for the inner drafter, the inner drafter does not follow its first tokens; their number grows in steps of half
//! of the tokens that have room.
//!
//! The inner drafter is kept by reference when given as an lvalue, by value otherwise; the map must outlive this
//! object.
//!
//! Complexity  propose: as the inner drafter, and a pass over the target's vocabulary for each node; commit: as the
//!             inner drafter, and O(text) if a committed token is not shared, or if the inner drafter has no more room
//!             for the first tokens that it follows
//! Law         as StepDrafter and ProcessingDrafter, and as SharedDrafter if the inner drafter is one
//! Errors      option_error if the inner drafter has another vocabulary than the map, or no token is shared;
//!             input_error for a token that is not in the target's vocabulary; the inner drafter's errors
//! Source      Timor et al., Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
//!             Vocabularies, token-level intersection, which drafts a chain and cuts the text anew in each round
template <class DrafterT>
class translated {
  using inner_type = std::remove_reference_t<DrafterT>;
  static_assert(StepDrafter<inner_type>, "the first argument must be a StepDrafter");
  using number = std::remove_cvref_t<decltype(std::declval<inner_type&>().rows().row(root_node)[0])>;

 public:
  using pass_type = typename detail::pass_of<inner_type>::type;
  static constexpr bool is_outside = detail::OutsideDrafter<inner_type>;
  // Only tokens that are shared are drafted, and each of them stands for one token of the draft.
  static constexpr bool follows_path = detail::FollowsPath<inner_type>;

  translated(DrafterT&& inner, const vocabulary_map& map) : inner_(std::forward<DrafterT>(inner)), map_(&map) {
    if (inner_.vocab_size() != map.draft_size()) {
      raise<option_error>("the drafter has a vocabulary of ", inner_.vocab_size(),
                          " tokens, but the map was made for one of ", map.draft_size(), ".");
    }
    if (map.shared().empty()) {
      raise<option_error>("a target with ", map.target_size(), " tokens and a draft with ", map.draft_size(),
                          " share none: there is no token that one could draft for the other.");
    }
  }

  //! Returns another translated drafter, over the drafter that drafter_for_text() makes of the inner one.
  auto for_text(std::int32_t sequence) { return espalier::translated(drafter_for_text(inner_, sequence), *map_); }

  std::int32_t vocab_size() const { return map_->target_size(); }
  std::int32_t capacity() const { return (std::numeric_limits<std::int32_t>::max)(); }

  void reserve(std::int32_t max_nodes) {
    inner_.reserve(max_nodes);
    max_nodes_ = (std::max)(max_nodes, max_nodes_);
    const auto nodes = static_cast<std::size_t>(max_nodes_) + 1;
    row_of_.resize(nodes, -1);
    renumbered_.resize(nodes);
    tokens_.resize(nodes);
    rows_.resize(nodes * static_cast<std::size_t>(vocab_size()));
  }

  void begin(std::span<const token_id> context) {
    text_.assign(context.begin(), context.end());
    follow();
  }

  bool read_prompt(std::int32_t n) requires PromptDrafter<inner_type> { return inner_.read_prompt(n); }

  void process_rows(row_processor<number> process) {
    process_ = process;
    if (process_) logits_.resize(static_cast<std::size_t>(vocab_size()));
  }

  void propose(tree_view tree, std::span<const node_id> nodes) {
    open(nodes);
    inner_.propose(in_draft(tree), nodes);
    make_rows(tree, nodes);
  }

  //! The members of a SharedDrafter, from here to answer(); they are there if the inner drafter is one.
  void want(tree_view tree, std::span<const node_id> nodes) requires SharedDrafter<inner_type> {
    open(nodes);
    inner_.want(in_draft(tree), nodes);
    tree_ = tree;
    nodes_ = nodes;
  }
  bool want_prompt(std::int32_t n) requires SharedDrafter<inner_type> { return inner_.want_prompt(n); }
  std::int32_t n_wanted() const requires SharedDrafter<inner_type> { return inner_.n_wanted(); }
  std::int32_t max_rows() const requires(SharedDrafter<inner_type> || detail::FollowsPath<inner_type>) {
    return inner_.max_rows();
  }
  template <class PassT>
  std::int32_t add_rows(PassT& pass, std::int32_t most) requires SharedDrafter<inner_type> {
    return inner_.add_rows(pass, most);
  }
  template <class PassT>
  auto forward(PassT& pass) requires SharedDrafter<inner_type> {
    return inner_.forward(pass);
  }
  template <class RowsT>
  void take(RowsT rows, std::int32_t first_output, std::int32_t first_row) requires SharedDrafter<inner_type> {
    inner_.take(rows, first_output, first_row);
  }
  node_rows<number> answer() requires SharedDrafter<inner_type> {
    (void)inner_.answer();  // makes the inner drafter's rows, if it has not made them in take()
    make_rows(tree_, nodes_);
    return rows();
  }

  node_rows<number> rows() const { return {{rows_.get(), n_rows_, vocab_size()}, row_of_.data()}; }

  void renumber(std::span<const node_id> was) requires RenumberingDrafter<inner_type> {
    detail::renumber(row_of_, renumbered_, was);
    inner_.renumber(was);
  }

  void commit(tree_view tree, verdict v) {
    const std::size_t before = text_.size();
    append_committed(text_, tree, v);
    bool is_whole = true;  // all committed tokens are shared, so the inner drafter's tree has them
    for (std::size_t i = before; i < text_.size(); ++i) {
      require(text_[i]);
      is_whole = is_whole && map_->is_shared(text_[i]);
      n_draft_ += map_->cut(text_[i]).size();
    }
    if (is_whole && first_kept(n_draft_) == first_) {
      inner_.commit(in_draft(tree), {v.accepted, map_->cut(v.token)[0]});
      last_ = map_->cut(v.token)[0];
    } else {
      follow();
    }
    std::fill(row_of_.begin(), row_of_.end(), -1);
  }

  double forward_seconds() const { return forward_seconds_of(inner_); }

 private:
  void require(token_id t) const {
    if (t < 0 || t >= vocab_size())
      raise<input_error>("the text has token ", t, ", but the target a vocabulary of ", vocab_size(), " tokens.");
  }

  std::size_t first_kept(std::size_t n) const { return detail::first_followed(n, inner_.capacity() - max_nodes_ - 1); }

  void open(std::span<const node_id> nodes) {
    if (!detail::opens_round(nodes, row_of_.size())) return;
    std::fill(row_of_.begin(), row_of_.end(), -1);
    n_rows_ = 0;
  }

  // Makes the rows of these nodes, whose rows the inner drafter has.
  void make_rows(tree_view tree, std::span<const node_id> nodes) {
    for (const node_id u : nodes) {
      const std::span<number> row(rows_.get() + static_cast<std::ptrdiff_t>(n_rows_) * vocab_size(),
                                  static_cast<std::size_t>(vocab_size()));
      make(inner_.rows().row(u), row.data());
      if (process_ && !detail::process_distribution(process_, tree, u, row, logits_))
        make(inner_.rows().row(u), row.data());
      row_of_[static_cast<std::size_t>(u)] = n_rows_++;
    }
  }

  // Translates the whole text, and makes the inner drafter follow it.
  void follow() {
    in_draft_.clear();
    for (const token_id t : text_)
      require(t);
    if (map_->begin() >= 0 && !text_.empty()) {
      const std::span<const token_id> cut = map_->cut(text_[0]);
      if (cut.empty() || cut[0] != map_->begin()) in_draft_.push_back(map_->begin());
    }
    for (const token_id t : text_) {
      const std::span<const token_id> cut = map_->cut(t);
      in_draft_.insert(in_draft_.end(), cut.begin(), cut.end());
    }
    n_draft_ = in_draft_.size();
    first_ = first_kept(n_draft_);
    if (in_draft_.empty() && !text_.empty()) in_draft_.push_back(0);
    inner_.begin(std::span<const token_id>(in_draft_).subspan(first_));
    last_ = in_draft_.empty() ? token_id{0} : in_draft_.back();
    std::fill(row_of_.begin(), row_of_.end(), -1);
  }

  // The tree in the draft's tokens, which are kept until the next call.
  tree_view in_draft(tree_view tree) {
    if (static_cast<std::size_t>(tree.n_nodes) > tokens_.size()) tokens_.resize(static_cast<std::size_t>(tree.n_nodes));
    tokens_[0] = last_;
    for (node_id u = 1; u < tree.n_nodes; ++u) {
      require(tree.token[u]);
      const std::span<const token_id> cut = map_->cut(tree.token[u]);
      tokens_[static_cast<std::size_t>(u)] = cut.empty() ? token_id{0} : cut[0];
    }
    tree.token = tokens_.data();
    return tree;
  }

  void make(std::span<const number> from, number* row) const {
    std::fill_n(row, vocab_size(), number{0});
    double sum = 0;
    for (const auto& s : map_->shared())
      sum += static_cast<double>(from[static_cast<std::size_t>(s.draft)]);
    for (const auto& s : map_->shared()) {
      const auto q = static_cast<double>(from[static_cast<std::size_t>(s.draft)]);
      row[s.target] = static_cast<number>(sum > 0 ? q / sum : 1.0 / static_cast<double>(map_->shared().size()));
    }
  }

  DrafterT inner_;
  const vocabulary_map* map_;
  row_processor<number> process_;
  std::vector<number> logits_;      // [target's vocabulary] the logarithms of a row, if there is a processor
  detail::list<token_id> text_;     // in the target's tokens
  std::vector<token_id> in_draft_;  // the translated text of the last follow()
  std::size_t n_draft_ = 0;         // number of tokens of the whole translated text
  std::size_t first_ = 0;           // number of leading tokens of it that the inner drafter does not follow
  token_id last_ = 0;               // the draft's token that is pending
  std::int32_t max_nodes_ = 0;
  std::int32_t n_rows_ = 0;
  std::vector<token_id> tokens_;                    // [nodes] the draft's token of each node of a tree
  detail::list<std::int32_t> row_of_, renumbered_;  // [nodes]
  detail::unset_numbers<number> rows_;              // [nodes][target's vocabulary]
  // Still wanted: the rows of nodes_ in tree_.
  tree_view tree_;
  std::span<const node_id> nodes_;
};

template <class DrafterT>
translated(DrafterT&&, const vocabulary_map&) -> translated<DrafterT>;

}  // namespace espalier
