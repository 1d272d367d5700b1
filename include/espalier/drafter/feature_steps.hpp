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
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/util/stopwatch.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/drafter/nodes/node_checks.hpp"
#include "espalier/drafter/nodes/node_columns.hpp"
#include "espalier/drafter/nodes/row_writer.hpp"
#include "espalier/sampling/sampler.hpp"

namespace espalier {

//! A pass of a model of feature_steps over rows of many texts. A row reads a token and the state before it, which the
//! model's context of the text holds: a state of the target, or one that an earlier row has left.
template <class ContextT>
struct feature_pass {
  //! The states of one row, by their numbers in its context.
  struct row_states {
    std::int32_t reads = -1;   //!< number of the drafted state that it reads; -1: the target's state before its token
    std::int32_t writes = -1;  //!< number under which its own state is kept, for later passes; -1: it is not kept
  };

  forward_batch batch;              //!< sequence i is the text of contexts[i]
  std::vector<ContextT*> contexts;  //!< [sequences]
  std::vector<row_states> states;   //!< [n_rows]

  void clear() { batch.clear(), contexts.clear(), states.clear(); }
  std::int32_t n_rows() const { return batch.n_rows(); }
  std::int32_t n_outputs() const { return batch.n_outputs(); }
};

//! Drafts with a head on the target's hidden states. The row after a token is computed from the token and from the
//! state after the token before it. This is the target's state, if the target has read the token before, or else, on a
//! drafted path, the head's own state. EAGLE, EAGLE-2, EAGLE-3 and MTP draft so.
//!
//! The model is kept by reference when given as an lvalue, by value otherwise. A model has vocab_size(),
//! max_positions(), max_rows() and
//!   make_context() -> context                 makes a context: the data that the model holds of one text
//!   reserve(context, n)                       makes room for rounds of n nodes; the context then holds no cache rows
//!   read(context, backend, rows, position)    adds the target's states of these rows to a context; the first row
//!                                             stands at this position of the text, and all stand below max_positions()
//!   forward(const feature_pass&) -> vocab_rows  makes one pass; returns a row of logits for each output
//!   tokens() -> span<const token_id>          the token of each column of the logits; empty: columns are tokens
//! Slot i of a context's cache is the row of token i + 1 of its text, since no state stands before token 0. A text of
//! one token has that token's row in slot 0, and a state of zeros before it.
//!
//! Complexity  propose: one pass over as many rows as nodes; at the root, over the tokens that were written since the
//!             last round. A row is over the target's vocabulary, but without a processor only the model's own tokens
//!             are written: the others stay 0. No allocation after reserve(), except in the first round with a
//!             processor
//! Law         as StepDrafter, FeatureDrafter, SharedDrafter and ProcessingDrafter. After a commit, states that were
//!             drafted are forgotten: the target's take their place
//! Errors      input_error for an empty context, for a text longer than capacity() or one whose states were not all
//!             read, and for a node that may not be asked about (StepDrafter); numeric_error as sampler; the
//!             exceptions of the model, after which the next round opens as if the failed one had not begun
//! Source      Li et al., EAGLE-3; Gloeckle et al. and DeepSeek-V3, section 2.2, for MTP
template <class ModelT>
class feature_steps {
  using model_type = std::remove_reference_t<ModelT>;
  using context_type = decltype(std::declval<model_type&>().make_context());

 public:
  using pass_type = feature_pass<context_type>;

 private:
  using number = std::remove_cvref_t<decltype(*std::declval<model_type&>().forward(std::declval<pass_type&>()).data)>;

 public:
  explicit feature_steps(ModelT&& model, sampling_options sampling = {.temperature = 1.0F})
      : model_(std::forward<ModelT>(model)), context_(model_.make_context()), sampler_(sampling) {}

  //! Returns another drafter over the same model with the same sampling options, for a text of its own. It uses the
  //! model by reference, so the model must outlive it.
  auto for_text(std::int32_t sequence) {
    espalier::feature_steps<model_type&> other(model_, sampler_.options());
    other.sequence_ = sequence;
    return other;
  }

  std::int32_t vocab_size() const { return model_.vocab_size(); }
  std::int32_t capacity() const { return model_.max_positions(); }

  void reserve(std::int32_t max_nodes) {
    const auto nodes = static_cast<std::size_t>(max_nodes) + 1;
    if (nodes <= row_of_.size()) return;
    model_.reserve(context_, max_nodes);
    n_rows_ = 0;
    text_.reserve(static_cast<std::size_t>(capacity()) + nodes + 1);
    rows_.assign(nodes * static_cast<std::size_t>(vocab_size()), number{0});
    row_of_.resize(nodes, -1), renumbered_.resize(nodes);
    columns_.reserve(max_nodes);
    writer_.reserve(vocab_size(), model_.tokens(), false);
    sampler_.reserve(vocab_size());
    const std::int32_t most = (std::max)(max_nodes, model_.max_rows());
    pass_.batch.reserve(most, most);
    pass_.contexts.reserve(1), pass_.states.reserve(static_cast<std::size_t>(most));
  }

  void process_rows(row_processor<number> process) {
    process_ = process;
    writer_.reserve(vocab_size(), model_.tokens(), bool(process_));
  }

  void begin(std::span<const token_id> context) {
    if (context.empty()) raise<input_error>("the context is empty; a drafter needs at least one token to go on from.");
    const auto common = std::mismatch(text_.begin(), text_.end(), context.begin(), context.end()).first - text_.begin();
    keep(static_cast<std::int32_t>(common));
    text_.assign(context.begin(), context.end());
    close_round();
  }

  std::int32_t n_read() const { return n_read_; }

  template <class BackendT>
  requires requires(model_type& model, context_type& context, const BackendT& backend,
                    std::span<const std::int32_t> rows) {
    model.read(context, backend, rows, 0);
  }
  void read(const BackendT& backend, std::span<const std::int32_t> rows) {
    stopwatch watch;
    // A committed path may end beyond what the model can hold.
    const auto room = static_cast<std::size_t>((std::max)(std::int32_t{0}, capacity() - n_read_));
    model_.read(context_, backend, rows.first((std::min)(rows.size(), room)), n_read_);
    n_read_ += static_cast<std::int32_t>(rows.size());
    forward_seconds_ += watch.lap();
  }

  void propose(tree_view tree, std::span<const node_id> nodes) {
    want(tree, nodes);
    for (;;) {
      pass_.clear();
      if (add_rows(pass_, max_rows()) == 0) return;
      take(forward(pass_), 0, 0);
    }
  }

  std::int32_t max_rows() const { return model_.max_rows(); }

  //! Returns false: the text is read when the root is asked about, since the target reads it first.
  bool want_prompt(std::int32_t) { return false; }

  void want(tree_view tree, std::span<const node_id> nodes) {
    n_to_read_ = 0;
    nodes_ = {};
    tree_ = tree;
    if (!detail::opens_round(nodes, row_of_.size())) {
      nodes_ = nodes;
      return;
    }
    close_round();
    const auto length = static_cast<std::int32_t>(text_.size());
    if (length < 1 || length > capacity()) {
      raise<input_error>("a text of ", length, " tokens cannot be gone on from: the draft head follows 1 to ",
                         capacity(), ".");
    }
    if (n_read_ < length - 1) {
      raise<input_error>("the draft head has read the target's hidden states of ", n_read_, " of the ", length - 1,
                         " tokens before the pending one.");
    }
    keep(length - 1);  // a round that was given up may have read more tokens, and has left the row of its root
    n_to_read_ = (std::max)(length - 1, std::int32_t{1}) - n_rows_;
  }

  std::int32_t n_wanted() const { return n_to_read_ + static_cast<std::int32_t>(nodes_.size()); }

  std::int32_t add_rows(pass_type& pass, std::int32_t most) {
    n_added_ = (std::min)(n_wanted(), most);
    if (n_added_ <= 0) return n_added_ = 0;
    const std::int32_t first = columns_.size(), root = static_cast<std::int32_t>(text_.size()) - 1;
    // All nodes are checked before the first row is added: the pass holds rows of other texts, too.
    const auto nodes = nodes_.first(n_to_read_ > 0 ? 0 : static_cast<std::size_t>(n_added_));
    columns_.give(tree_, nodes, row_of_[root_node] >= 0, vocab_size());
    const auto sequence = static_cast<std::int32_t>(pass.contexts.size());
    pass.contexts.push_back(&context_);
    pass.batch.begin_sequence(sequence, n_rows_, n_to_read_ > 0 ? n_added_ : first + n_added_);
    for (const node_id u : nodes) {
      const node_id parent = tree_.parent[u];
      columns_.add_row(pass.batch, tree_, u, root, true);
      pass.states.push_back({parent == root_node ? 0 : columns_.of(parent) + 1, columns_.of(u) + 1});
    }
    for (std::int32_t i = 0; i < n_added_ && n_to_read_ > 0; ++i) {
      const std::int32_t position = n_rows_ + i + (root > 0 ? 1 : 0);
      const bool is_root = position == root;
      pass.batch.add_row(text_[static_cast<std::size_t>(position)], position, i, is_root).include_first(i);
      pass.states.push_back({-1, is_root ? 0 : -1});
    }
    return n_added_;
  }

  vocab_rows<number> forward(pass_type& pass) {
    stopwatch watch;
    const vocab_rows<number> logits = model_.forward(pass);
    forward_seconds_ += watch.lap();
    return logits;
  }

  void take(vocab_rows<number> logits, std::int32_t first_output, std::int32_t) {
    if (n_to_read_ > 0) {
      n_rows_ += n_added_, n_to_read_ -= n_added_;
      if (n_to_read_ == 0) take_row(root_node, logits.row(first_output));
      return;
    }
    for (const node_id u : nodes_.first(static_cast<std::size_t>(n_added_)))
      take_row(u, logits.row(first_output++));
    nodes_ = nodes_.subspan(static_cast<std::size_t>(n_added_));
  }

  sampled_rows<number> answer() const { return rows(); }
  sampled_rows<number> rows() const {
    return {{{rows_.data(), static_cast<std::int32_t>(row_of_.size()), vocab_size()}, row_of_.data()}};
  }

  void renumber(std::span<const node_id> was) { detail::renumber(row_of_, renumbered_, was); }

  void commit(tree_view tree, verdict v) {
    // Past the end there is nothing to follow: no round can open until begin() gives a shorter text.
    if (text_.size() > static_cast<std::size_t>(capacity())) return;
    if (text_.size() == 1) n_rows_ = 0;
    append_committed(text_, tree, v);
    close_round();
  }

  //! Seconds spent in the model since construction.
  double forward_seconds() const { return forward_seconds_; }

 private:
  template <class OtherT>
  friend class feature_steps;

  // Keeps what was read of the first n tokens, and the cache rows that come from them alone.
  void keep(std::int32_t n) {
    n_read_ = (std::min)(n_read_, n);
    n_rows_ = (std::min)(n_rows_, (std::max)(n - 1, std::int32_t{0}));
  }

  void close_round() {
    std::fill(row_of_.begin(), row_of_.end(), -1);
    columns_.clear();
    n_made_ = 0;
  }

  void take_row(node_id u, std::span<const number> logits) {
    const std::span<number> row(rows_.data() + std::ptrdiff_t{n_made_} * vocab_size(),
                                static_cast<std::size_t>(vocab_size()));
    const auto from = row_origin::after_node(row_origin::model::draft, sequence_, u);
    writer_.write(tree_, u, logits, model_.tokens(), process_, sampler_, from, row);
    row_of_[static_cast<std::size_t>(u)] = n_made_++;
  }

  ModelT model_;
  context_type context_;
  sampler<number> sampler_;
  std::int32_t sequence_ = -1;
  detail::list<token_id> text_;  // committed; the last token is pending
  std::int32_t n_read_ = 0;      // leading tokens of the text whose states were read
  std::int32_t n_rows_ = 0;      // cache rows of the text
  std::vector<number> rows_;     // [nodes][vocab]
  detail::row_writer<number> writer_;
  row_processor<number> process_;
  std::int32_t n_made_ = 0;  // rows of this round
  detail::list<std::int32_t> row_of_, renumbered_;
  detail::node_columns columns_;
  // Still wanted: n_to_read_ cache rows of the text, or else the rows of nodes_.
  std::int32_t n_to_read_ = 0;
  tree_view tree_{};
  std::span<const node_id> nodes_{};
  std::int32_t n_added_ = 0;  // number of rows added to the pass under way
  pass_type pass_;
  double forward_seconds_ = 0;
};

template <class ModelT>
feature_steps(ModelT&&) -> feature_steps<ModelT>;
template <class ModelT>
feature_steps(ModelT&&, sampling_options) -> feature_steps<ModelT>;

}  // namespace espalier
