// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/drafter/renumber.hpp"
#include "espalier/sampling/sampler.hpp"

namespace espalier {

namespace detail {

// Rows in the order in which they were asked for, several of which may be one.
template <class NumberT>
struct asked_rows : node_rows<NumberT> {
  std::int32_t n_rows = 0;
  std::int32_t vocab = 0;
};

}  // namespace detail

//! Makes a StepDrafter of a BlockDrafter: the row of a node is the marginal of its depth, whatever its path, so that every
//! policy grows trees and every verifier judges them, as over any other draft. Below the last marginal that one is repeated.
//!
//! The block drafter is kept by reference when given as an lvalue, by value otherwise. Where it reads the target's hidden
//! states, so does this.
//!
//! Complexity  one call of propose_block a round; the sampler once a depth, when it is first asked for; no allocation after
//!             reserve()
//! Law         StepDrafter's
//! Errors      numeric_error for a marginal with a logit that is NaN or plus infinity, or in which all are minus infinity, when it
//!             is first asked for; what the block drafter throws
//! Source      DDTree, section 3: the product of the marginals
template <class BlockDrafterT>
class factorised {
  using inner_type = std::remove_reference_t<BlockDrafterT>;
  static_assert(BlockDrafter<inner_type>, "the first argument must be a BlockDrafter");
  using number = std::remove_cvref_t<decltype(std::declval<inner_type&>().propose_block().row(0)[0])>;

 public:
  explicit factorised(BlockDrafterT&& inner, sampling_options sampling = {.temperature = 1.0F})
      : inner_(std::forward<BlockDrafterT>(inner)), sampler_(sampling) {}

  std::int32_t vocab_size() const { return inner_.vocab_size(); }
  std::int32_t capacity() const { return inner_.capacity(); }

  void reserve(std::int32_t max_nodes) {
    inner_.reserve(max_nodes);
    const auto nodes = static_cast<std::size_t>(max_nodes) + 1;
    if (nodes > row_of_.size()) {
      row_of_.resize(nodes, -1);
      renumbered_.resize(nodes);
      asked_.resize(nodes);
    }
    const auto vocab = static_cast<std::size_t>(vocab_size());
    const auto depths = static_cast<std::size_t>(inner_.block_length());
    is_made_.resize(depths);
    rows_.reset(new number[depths * vocab]);
    logits_of_row_.resize(vocab);
    sampler_.reserve(vocab_size());
  }

  void begin(std::span<const token_id> context) {
    inner_.begin(context);
    close_round();
  }

  std::int32_t n_read() const requires requires(const inner_type& inner) { inner.n_read(); }
  { return inner_.n_read(); }

  template <class BackendT>
  requires FeatureDrafter<inner_type, BackendT>
  void read(const BackendT& backend, std::span<const std::int32_t> rows) { inner_.read(backend, rows); }

  detail::asked_rows<number> propose(tree_view tree, std::span<const node_id> nodes) {
    if (nodes.size() == 1 && nodes[0] == root_node) {
      close_round();
      logits_ = inner_.propose_block();
    }
    const std::size_t first = n_asked_;
    for (const node_id u : nodes) {
      const std::int32_t row = (std::min)(tree.depth[u], logits_.n_rows - 1);
      make(row);
      asked_[n_asked_++] = row_of_[static_cast<std::size_t>(u)] = row;
    }
    return {{all_rows(), asked_.data() + first}, static_cast<std::int32_t>(nodes.size()), vocab_size()};
  }

  sampled_rows<number> rows() const { return {{all_rows(), row_of_.data()}}; }

  void renumber(std::span<const node_id> was) { detail::renumber(row_of_, renumbered_, was); }

  void commit(tree_view tree, verdict v) {
    inner_.commit(tree, v);
    close_round();
  }

  double forward_seconds() const requires requires(const inner_type& inner) { inner.forward_seconds(); }
  { return inner_.forward_seconds(); }

 private:
  vocab_rows<number> all_rows() const { return {rows_.get(), inner_.block_length(), vocab_size()}; }

  void close_round() {
    std::fill(row_of_.begin(), row_of_.end(), -1);
    std::fill(is_made_.begin(), is_made_.end(), char{0});
    n_asked_ = 0;
  }

  void make(std::int32_t row) {
    char& is_made = is_made_[static_cast<std::size_t>(row)];
    if (is_made != 0) return;
    // The sampler wants finite numbers: the lowest there is has probability 0, too.
    const std::span<const number> logits = logits_.row(row);
    constexpr number lowest = std::numeric_limits<number>::lowest();
    bool any = false;
    for (std::size_t t = 0; t < logits.size(); ++t) {
      const bool is_below = logits[t] < lowest;
      logits_of_row_[t] = is_below ? lowest : logits[t];
      any = any || !is_below;
    }
    if (!any) raise<numeric_error>("all logits of marginal ", row, " are minus infinity: no token can follow.");
    const auto vocab = static_cast<std::size_t>(vocab_size());
    sampler_.probabilities(logits_of_row_, {rows_.get() + static_cast<std::size_t>(row) * vocab, vocab}, row);
    is_made = 1;
  }

  BlockDrafterT inner_;
  sampler<number> sampler_;
  vocab_rows<number> logits_;          // of this round
  std::unique_ptr<number[]> rows_;     // [block_length][vocab]
  std::vector<char> is_made_;          // [block_length]
  std::vector<number> logits_of_row_;  // [vocab]
  std::vector<std::int32_t> row_of_;   // by node: its depth, or -1 where it was not asked about
  std::vector<std::int32_t> renumbered_;
  std::vector<std::int32_t> asked_;  // the same in the order of asking
  std::size_t n_asked_ = 0;
};

template <class BlockDrafterT>
factorised(BlockDrafterT&&) -> factorised<BlockDrafterT>;
template <class BlockDrafterT>
factorised(BlockDrafterT&&, sampling_options) -> factorised<BlockDrafterT>;

}  // namespace espalier
