// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/processed.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <type_traits>

#include "espalier/concepts/processor.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/static/unset_numbers.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/decoder/text_processor.hpp"
#include "espalier/sampling/lazy_rows.hpp"

namespace espalier::detail {

// lazy_rows of logits that pass through the text's processor: a node's row is copied and processed when a verifier
// first asks for it.
//
// After a node where nothing is allowed, the row is the model's own: whatever a verifier does there, the text ends at
// that node, and the verifier's decisions elsewhere stay lossless.
template <class NumberT, class ProcessorT>
class processed_rows {
 public:
  static constexpr bool are_distributions = true;

  void reserve(std::int32_t nodes, std::int32_t vocab) {
    rows_.reserve(nodes, vocab);
    made_.resize(static_cast<std::size_t>(nodes));
    places_.resize(static_cast<std::size_t>(nodes));
    std::iota(places_.begin(), places_.end(), 0);
    processed_.resize(static_cast<std::size_t>(nodes) * static_cast<std::size_t>(vocab));
  }

  void sample(const sampling_options& options, std::int32_t vocab) { rows_.sample(options, vocab); }
  const sampling_options& options() const { return rows_.options(); }

  // Opens the rows of a round, as lazy_rows does, for the nodes of this tree.
  void open(vocab_rows<NumberT> logits, std::span<const std::int32_t> row_of, std::int32_t sequence, tree_view tree,
            text_processor<ProcessorT>& processor) {
    logits_ = logits;
    row_of_ = row_of;
    tree_ = tree;
    processor_ = &processor;
    std::fill_n(made_.begin(), row_of.size(), row_state::unseen);
    if (processor.idle())
      rows_.open(logits, row_of, sequence);
    else
      rows_.open({processed_.get(), logits.n_rows, logits.vocab}, std::span(places_).first(row_of.size()), sequence);
  }

  token_id argmax(node_id u) {
    make(u);
    return rows_.argmax(u);
  }
  std::span<const NumberT> row(node_id u) {
    make(u);
    return rows_.row(u);
  }

  // Returns the logits that follow node u, as the processor leaves them; the model's own if nothing is allowed there.
  std::span<const NumberT> logits(node_id u) {
    if (processor_->idle()) return logits_.row(row_of_[static_cast<std::size_t>(u)]);
    make(u);
    return place(u);
  }

  // Returns the depth of the first node on the path to `accepted` after which nothing is allowed, or -1.
  std::int32_t end_of(node_id accepted) const {
    std::int32_t depth = -1;
    for (node_id u = accepted; u != no_node; u = tree_.parent[u]) {
      if (made_[static_cast<std::size_t>(u)] == row_state::impossible) depth = tree_.depth[u];
    }
    return depth;
  }

 private:
  enum class row_state : char { unseen, processed, impossible };

  std::span<NumberT> place(node_id u) const {
    const auto vocab = static_cast<std::size_t>(logits_.vocab);
    return {processed_.get() + static_cast<std::size_t>(u) * vocab, vocab};
  }

  void make(node_id u) {
    row_state& state = made_[static_cast<std::size_t>(u)];
    if (state != row_state::unseen || processor_->idle()) return;
    const bool is_usable = processor_->process(tree_, u, logits_.row(row_of_[static_cast<std::size_t>(u)]), place(u));
    state = is_usable ? row_state::processed : row_state::impossible;
  }

  lazy_rows<NumberT> rows_;
  vocab_rows<NumberT> logits_;
  std::span<const std::int32_t> row_of_;
  tree_view tree_{};
  text_processor<ProcessorT>* processor_ = nullptr;
  list<row_state> made_;              // [nodes]
  list<std::int32_t> places_;         // [nodes] 0, 1, 2...
  unset_numbers<NumberT> processed_;  // [nodes][vocab] logits
};

// The target's rows of a round, of texts with this processor.
template <class NumberT, class ProcessorT>
using target_rows = std::conditional_t<processes<ProcessorT>, processed_rows<NumberT, ProcessorT>, lazy_rows<NumberT>>;

}  // namespace espalier::detail
