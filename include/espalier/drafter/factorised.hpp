// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/row_processor.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/static/unset_numbers.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/drafter/nodes/node_checks.hpp"
#include "espalier/drafter/nodes/row_writer.hpp"
#include "espalier/sampling/sampler.hpp"

namespace espalier {

//! Makes a StepDrafter of a BlockDrafter: the row of a node is the marginal of its depth, whatever its path. So every
//! policy can grow trees over a block, and every verifier can judge them. Nodes deeper than the last marginal have the
//! row of the last one.
//!
//! If the text has a processor, each node has a row of its own: the marginal of its depth, changed by the processor for
//! the node's path.
//!
//! If the block drafter corrects its rows by path (ConditionedBlockDrafter), each node has a row of its own, too: the
//! marginal of its depth, corrected.
//!
//! If the block drafter's rows have columns for some tokens alone (its tokens()), the rows of this class have 0 for the
//! others. Without a processor these zeros are written once, in reserve().
//!
//! The block drafter is kept by reference when given as an lvalue, by value otherwise. If it reads the target's hidden
//! states, so does the StepDrafter.
//!
//! Complexity  one call of propose_block a round; the sampler once for each depth that is asked about, or, where nodes
//!             have rows of their own, once for each node; no allocation after reserve() and the first process_rows()
//! Law         as StepDrafter and ProcessingDrafter, and as SharedDrafter if the block drafter is one
//! Errors      numeric_error as sampler, when a marginal is first asked for; input_error for a node that may not be
//!             asked about (StepDrafter); the exceptions of the block drafter
//! Source      DDTree, section 3: the product of the marginals
template <class BlockDrafterT>
class factorised {
  using inner_type = std::remove_reference_t<BlockDrafterT>;
  static_assert(BlockDrafter<inner_type>, "the first argument must be a BlockDrafter");
  using number = detail::block_number<inner_type>;
  static constexpr bool may_correct = ConditionedBlockDrafter<inner_type>;
  static_assert(may_correct || !detail::NamesCorrect<inner_type>,
                "the block drafter's member correct cannot be called as correct(tree, node, row): see "
                "ConditionedBlockDrafter");

 public:
  using pass_type = typename detail::pass_of<inner_type>::type;

  explicit factorised(BlockDrafterT&& inner, sampling_options sampling = {.temperature = 1.0F})
      : inner_(std::forward<BlockDrafterT>(inner)), sampler_(sampling) {}

  //! Returns another factorised with the same sampling options, for a text of its own, over the block drafter that
  //! drafter_for_text() makes of this one's.
  auto for_text(std::int32_t sequence) {
    return espalier::factorised(drafter_for_text(inner_, sequence), sampler_.options());
  }

  std::int32_t vocab_size() const { return inner_.vocab_size(); }
  std::int32_t capacity() const { return inner_.capacity(); }

  void reserve(std::int32_t max_nodes) {
    inner_.reserve(max_nodes);
    const auto nodes = static_cast<std::size_t>(max_nodes) + 1;
    if (nodes > row_of_.size()) {
      row_of_.resize(nodes, -1);
      renumbered_.resize(nodes);
    }
    own_ = {};
    if (corrects()) {
      make_room(own_, row_of_.size());
      corrected_.resize(static_cast<std::size_t>(detail::columns_of(inner_)));
    }
    const auto depths = static_cast<std::size_t>(inner_.block_length());
    is_made_.resize(depths);
    make_room(rows_, depths);
    writer_.reserve(vocab_size(), tokens(), bool(process_));
    sampler_.reserve(vocab_size());
  }

  void process_rows(row_processor<number> process) {
    process_ = process;
    if (process_ && own_.get() == nullptr) make_room(own_, row_of_.size());
    writer_.reserve(vocab_size(), tokens(), bool(process_));
  }

  void begin(std::span<const token_id> context) {
    inner_.begin(context);
    close_round();
  }

  std::int32_t n_read() const requires detail::CountsFeatures<inner_type> { return inner_.n_read(); }

  template <class BackendT>
  requires FeatureDrafter<inner_type, BackendT>
  void read(const BackendT& backend, std::span<const std::int32_t> rows) { inner_.read(backend, rows); }

  void propose(tree_view tree, std::span<const node_id> nodes) {
    if (opens(nodes)) logits_ = detail::proposed_block(inner_, 1);
    ask(tree, nodes);
  }

  //! The members of a SharedDrafter, from here to answer(); they are there if the block drafter is one.
  void want(tree_view tree, std::span<const node_id> nodes) requires SharedDrafter<inner_type> {
    if (opens(nodes)) inner_.want(tree, nodes);
    tree_ = tree;
    nodes_ = nodes;
  }
  bool want_prompt(std::int32_t n) requires SharedDrafter<inner_type> { return inner_.want_prompt(n); }
  std::int32_t n_wanted() const requires SharedDrafter<inner_type> { return inner_.n_wanted(); }
  std::int32_t max_rows() const requires SharedDrafter<inner_type> { return inner_.max_rows(); }
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
  sampled_rows<number> answer() requires SharedDrafter<inner_type> {
    logits_ = inner_.answer().logits;  // where they are now: blocks of other texts may have moved them
    ask(tree_, nodes_);
    return rows();
  }

  sampled_rows<number> rows() const { return {{all_rows(), row_of_.data()}}; }

  void renumber(std::span<const node_id> was) { detail::renumber(row_of_, renumbered_, was); }

  void commit(tree_view tree, verdict v) {
    inner_.commit(tree, v);
    close_round();
  }

  double forward_seconds() const { return forward_seconds_of(inner_); }

 private:
  std::span<const token_id> tokens() const { return detail::tokens_of(inner_); }

  // Takes memory for n rows. They hold 0 where only the tokens that have a column will be written.
  void make_room(detail::unset_numbers<number>& rows, std::size_t n) const {
    const std::size_t size = n * static_cast<std::size_t>(vocab_size());
    rows.resize(size);
    if (!tokens().empty()) std::fill_n(rows.get(), size, number{0});
  }

  bool corrects() const {
    if constexpr (requires { inner_.corrects(); }) return inner_.corrects();
    return may_correct;
  }

  bool is_by_node() const { return corrects() || process_; }

  // The rows of this round: one for each depth, or one for each node.
  vocab_rows<number> all_rows() const {
    if (is_by_node()) return {own_.get(), static_cast<std::int32_t>(row_of_.size()), vocab_size()};
    return {rows_.get(), inner_.block_length(), vocab_size()};
  }

  // True if asking about these nodes begins a round. The round before is then closed.
  bool opens(std::span<const node_id> nodes) {
    const bool opens = detail::opens_round(nodes, row_of_.size());
    if (opens) close_round();
    return opens;
  }

  void ask(tree_view tree, std::span<const node_id> nodes) {
    for (const node_id u : nodes) {
      if (u != root_node || nodes.size() > 1) {
        detail::require_askable(tree, u, row_of_.size(),
                                [&](node_id v) { return row_of_[static_cast<std::size_t>(v)] >= 0; });
      }
      const std::int32_t row = (std::min)(tree.depth[u], logits_.n_rows - 1);
      if (is_by_node())
        make_own(tree, u, row);
      else
        make(row);
      row_of_[static_cast<std::size_t>(u)] = is_by_node() ? u : row;
    }
  }

  void close_round() {
    std::fill(row_of_.begin(), row_of_.end(), -1);
    std::fill(is_made_.begin(), is_made_.end(), char{0});
  }

  // Makes a node's own row: the row of its depth, corrected for its path, and changed by the processor.
  void make_own(tree_view tree, node_id u, std::int32_t row) {
    const auto vocab = static_cast<std::size_t>(vocab_size());
    const std::span<number> out{own_.get() + static_cast<std::size_t>(u) * vocab, vocab};
    std::span<const number> logits = logits_.row(row);
    if constexpr (may_correct) {
      if (corrects()) {
        const std::span<number> corrected(corrected_.get(), logits.size());
        std::copy(logits.begin(), logits.end(), corrected.begin());
        inner_.correct(tree, u, corrected);
        logits = corrected;
      }
    }
    writer_.write(tree, u, logits, tokens(), process_, sampler_, row_origin::of_block(row), out);
  }

  void make(std::int32_t row) {
    char& is_made = is_made_[static_cast<std::size_t>(row)];
    if (is_made != 0) return;
    const auto vocab = static_cast<std::size_t>(vocab_size());
    writer_.write({}, root_node, logits_.row(row), tokens(), {}, sampler_, row_origin::of_block(row),
                  {rows_.get() + static_cast<std::size_t>(row) * vocab, vocab});
    is_made = 1;
  }

  BlockDrafterT inner_;
  sampler<number> sampler_;
  detail::row_writer<number> writer_;
  vocab_rows<number> logits_;           // the block of this round
  detail::unset_numbers<number> rows_;  // [block_length][vocab]
  row_processor<number> process_;
  detail::unset_numbers<number> own_;        // [nodes][vocab], if nodes have rows of their own
  detail::unset_numbers<number> corrected_;  // [columns], if the block drafter corrects
  std::vector<char> is_made_;                // [block_length]
  std::vector<std::int32_t> row_of_;         // by node: its row, or -1 if it was not asked about
  std::vector<std::int32_t> renumbered_;
  // The nodes that are wanted, and their tree.
  tree_view tree_{};
  std::span<const node_id> nodes_{};
};

template <class BlockDrafterT>
factorised(BlockDrafterT&&) -> factorised<BlockDrafterT>;
template <class BlockDrafterT>
factorised(BlockDrafterT&&, sampling_options) -> factorised<BlockDrafterT>;

}  // namespace espalier
