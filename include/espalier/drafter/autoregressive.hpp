// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/concepts/backend.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/kv_store.hpp"
#include "espalier/concepts/model_mistake.hpp"
#include "espalier/concepts/recurrent_store.hpp"
#include "espalier/concepts/row_processor.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/require_token.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/static/unset_numbers.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/util/stopwatch.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/drafter/nodes/node_checks.hpp"
#include "espalier/drafter/nodes/node_columns.hpp"
#include "espalier/drafter/nodes/row_writer.hpp"
#include "espalier/forward/checked_forward.hpp"
#include "espalier/forward/held_prefix.hpp"
#include "espalier/forward/prefill.hpp"
#include "espalier/sampling/sampler.hpp"

namespace espalier {

//! Drafts with a smaller language model, in masked forward passes like the target's: one pass for each call of propose
//! (more if the backend takes fewer rows at once), so one for each depth when a policy asks level by level.
//! Siblings share the cache rows of their common path and have a row of their own each, at the same position of the
//! text.
//!
//! Backend and store are kept by reference when given as lvalues, by value otherwise.
//!
//! Complexity  propose: one pass over as many rows as nodes, and the passes that read the text's tokens that the cache
//!             lacks; no allocation after reserve(). If the text's processor leaves a single token after a node, the
//!             row of the node needs no pass; the node then joins the first pass over a node below it. The same holds
//!             for the root, unless hidden states are kept
//! Law         as StepDrafter, SharedDrafter and ProcessingDrafter; rows are the draft model's along each path, through
//!             the text's processor and the sampler; the row of previous_state() passes through no processor
//! Errors      constructor, reserve: option_error for options out of range, and if backend or store has too little room
//!             for a round; otherwise input_error for an empty context, for a text or tree that the cache has no room
//!             for, and for a node that may not be asked about (StepDrafter) or whose token the model does not know;
//!             numeric_error as sampler; the exceptions of the backend, after which the next round opens as if the
//!             failed one had not begun
template <class BackendT, class KVStoreT>
class autoregressive {
  using kv_type = std::remove_reference_t<KVStoreT>;
  static_assert(detail::fit<detail::model_mistake<std::remove_reference_t<BackendT>, kv_type>>());
  using number = logit_number<std::remove_reference_t<BackendT>, kv_type>;

 public:
  using pass_type = forward_batch;
  static constexpr bool is_outside = detail::IsOutside<std::remove_reference_t<BackendT>>;
  static constexpr bool follows_path = !WindowedKVStore<kv_type>;
  static constexpr bool gives_up_rows = SharingKVStore<kv_type> || !PrefixKVStore<kv_type>;

  autoregressive(BackendT&& backend, KVStoreT&& kv, sampling_options sampling = {.temperature = 1.0F},
                 std::int32_t sequence = 0)
      : backend_(std::forward<BackendT>(backend)),
        kv_(std::forward<KVStoreT>(kv)),
        sampler_(sampling),
        sequence_(sequence) {
    if constexpr (detail::HasMaxRows<std::remove_reference_t<BackendT>>)
      require_option("max_rows of the draft model", backend_.max_rows(), 1, 1 << 30);
  }

  std::int32_t vocab_size() const { return backend_.vocab_size(); }
  std::int32_t capacity() const { return context_length(backend_, kv_); }

  void process_rows(row_processor<number> process) {
    process_ = process;
    if (!has_processor()) return;
    writer_.reserve(vocab_size(), tokens(), true);
  }

  //! Makes the drafter keep the rows and states that root_state() and previous_state() return. Call it before
  //! reserve(). Without this call the drafter takes no memory for them and copies no row. A decoder calls it for
  //! policies such as neural_delayed.
  void keep_states() { keeps_states_ = true; }
  std::int32_t hidden_size() const {
    if constexpr (detail::KeepsHiddenStates<std::remove_reference_t<BackendT>>) return backend_.hidden_size();
    return 0;
  }

  void reserve(std::int32_t max_nodes) {
    // A drafter that several decoders share has room for the rounds of each.
    max_nodes_ = max_nodes = (std::max)(max_nodes, max_nodes_);
    const auto nodes = static_cast<std::size_t>(max_nodes) + 1;
    const std::size_t kept_rows = nodes + (keeps_states_ ? 1 : 0);
    require_scratch(kv_, max_nodes);
    require_rows(kv_, (std::max)(max_nodes, prefill::default_chunk));
    text_.reserve(std::min<std::size_t>(static_cast<std::size_t>(capacity()), 1U << 20) + nodes + 1);
    rows_.resize(kept_rows * static_cast<std::size_t>(vocab_size()));
    if (!tokens().empty()) std::fill_n(rows_.get(), kept_rows * static_cast<std::size_t>(vocab_size()), number{0});
    writer_.reserve(vocab_size(), tokens(), has_processor());
    hidden_.resize(keeps_states_ ? kept_rows * static_cast<std::size_t>(hidden_size()) : 0);
    knows_previous_ = false;
    row_of_.resize(nodes, -1), renumbered_.resize(nodes);
    columns_.reserve(max_nodes);
    if constexpr (ESPALIER_HOSTED != 0) asked_.reserve(nodes);
    const std::int32_t rows = (std::max)(max_nodes, prefill::default_chunk);
    batch_.reserve(rows, rows), prefill_.first_rows(rows);
    sampler_.reserve(vocab_size());
    // Makes the store take the memory of remember() now.
    if constexpr (PrefixKVStore<kv_type>)
      kv_.remember(sequence_, static_cast<std::int32_t>(kv_.prefix(sequence_).size()), {});
  }

  //! Number of bytes that this drafter, its backend and its store take of an arena, if keep_states() is not called.
  static constexpr std::size_t bytes(const static_capacity& c) {
    const auto nodes = static_cast<std::size_t>(c.nodes) + 1;
    const std::int32_t rows = (std::max)(c.nodes, prefill::default_chunk);
    static_capacity own = c;
    if (c.draft_cache_row >= 0) own.cache_row = c.draft_cache_row;
    return arena::bytes_of_part<BackendT>(own) + arena::bytes_of_part<KVStoreT>(own) +
           arena::bytes_of<token_id>(static_cast<std::size_t>(c.context) + nodes + 1) +
           arena::bytes_of<number>(nodes * static_cast<std::size_t>(c.vocabulary)) +
           2 * arena::bytes_of<std::int32_t>(nodes) + detail::node_columns::bytes(c.nodes) +
           forward_batch::bytes(rows, rows) + prefill::bytes(rows) + sampler<number>::bytes(c.draft, c.vocabulary) +
           (requires(const std::remove_reference_t<BackendT>& backend) { backend.tokens(); }
                ? arena::bytes_of<number>(static_cast<std::size_t>(c.vocabulary))
                : 0);
  }

  void begin(std::span<const token_id> context) {
    if (context.empty()) raise<input_error>("the context is empty; a drafter needs at least one token to go on from.");
    // A store that remembers no tokens is taken to hold rows of the text that this drafter followed last. Of the tokens
    // beyond the capacity only the first one is kept, which marks the text as too long.
    context = context.first((std::min)(context.size(), static_cast<std::size_t>(capacity()) + 1));
    const auto end = text_.begin() + (std::min)(std::ssize(text_), std::ptrdiff_t{kv_.size(sequence_)});
    const auto common = std::mismatch(text_.begin(), end, context.begin(), context.end()).first - text_.begin();
    text_.assign(context.begin(), context.end()), held_.begin();
    if constexpr (SharingKVStore<kv_type>) kv_.adopt(sequence_, context);
    keep(PrefixKVStore<kv_type> ? static_cast<std::int32_t>(context.size()) : static_cast<std::int32_t>(common));
    knows_previous_ = false;
    close_round();
  }

  bool read_prompt(std::int32_t n) {
    const bool reads_more = want_prompt(n);
    answer(n);
    return reads_more;
  }

  void propose(tree_view tree, std::span<const node_id> nodes) {
    want(tree, nodes);
    answer(n_to_read_ > 0 ? prefill::default_chunk : max_nodes_);
  }

  //! Returns another drafter with the same sampling options, for a text of its own in this sequence. It uses this
  //! drafter's backend and store by reference, so these must outlive it.
  auto for_text(std::int32_t sequence) {
    return autoregressive<std::remove_reference_t<BackendT>&, kv_type&>(backend_, kv_, sampler_.options(), sequence);
  }

  void release() {
    text_.clear();
    kv_.truncate(sequence_, 0);
    n_committed_ = 0;
    close_round();
  }

  //! The greatest number of rows of a pass.
  std::int32_t max_rows() const { return max_rows_of(backend_); }

  bool want_prompt(std::int32_t n) {
    keep(static_cast<std::int32_t>(text_.size()) - 1);
    nodes_ = {};
    // The last two tokens are for the round: their rows may be asked for.
    const std::int32_t left = static_cast<std::int32_t>(text_.size()) - 2 - kv_.size(sequence_);
    n_to_read_ = text_.size() > static_cast<std::size_t>(capacity()) ? 0 : std::clamp(left, std::int32_t{0}, n);
    n_outputs_ = 0;
    return n_to_read_ > 0 && left > n_to_read_;
  }

  void want(tree_view tree, std::span<const node_id> nodes) {
    n_to_read_ = 0;
    nodes_ = {};
    if (!detail::opens_round(nodes, row_of_.size())) {
      tree_ = tree;
      nodes_ = has_processor() ? unforced(nodes) : nodes;
      // If the root's row needed no pass, the text may not have been read yet.
      if (!nodes_.empty() && kv_.size(sequence_) < static_cast<std::int32_t>(text_.size())) want_text(0);
      return;
    }
    close_round();
    want_text(keeps_states_ && !knows_previous_ ? 2 : 1);  // the last token's logits are the root's row
    // Only a pass gives hidden states.
    if (has_processor() && !keeps_states_ && give_forced(tree, root_node)) n_to_read_ = 0;
  }

  std::int32_t n_wanted() const { return n_to_read_ + static_cast<std::int32_t>(nodes_.size()); }

  std::int32_t add_rows(pass_type& pass, std::int32_t most) {
    n_added_ = 0;
    if (n_to_read_ > 0) {
      const std::int32_t room = (std::min)(most, rows_until_slide(kv_, sequence_));
      const std::int32_t n = prefill::next_rows(n_to_read_, room, n_outputs_);
      if (!prefill::add(pass, kv_, sequence_, text_, n, outputs_of_next(n))) return -1;
      return n_added_ = n;
    }
    const std::size_t n = (std::min)(nodes_.size(), static_cast<std::size_t>(most));
    if (n > 0) n_added_ = add_nodes(pass, nodes_.first(n));
    return n_added_;
  }

  auto forward(const pass_type& pass) {
    stopwatch watch;
    const auto logits = checked_forward(backend_, kv_, pass.view(), detail::columns_of(backend_));
    forward_seconds_ += watch.lap();
    return logits;
  }

  void take(vocab_rows<number> logits, std::int32_t first_output, std::int32_t first_row) {
    if (n_to_read_ > 0) return take_text(logits, first_output, first_row);
    for (std::int32_t i = 0; i < n_added_; ++i) {
      const node_id u = nodes_[static_cast<std::size_t>(i)];
      if (row_of_[static_cast<std::size_t>(u)] < 0)
        take_row(u, logits.row(first_output++), first_row + i, after_node(u));
    }
    nodes_ = nodes_.subspan(static_cast<std::size_t>(n_added_));
  }

  sampled_rows<number> answer() const { return rows(); }

  void renumber(std::span<const node_id> was) {
    detail::renumber(row_of_, renumbered_, was);
    columns_.renumber(was);
  }

  sampled_rows<number> rows() const { return {{{rows_.get(), n_rows_, vocab_size()}, row_of_.data()}}; }

  //! The row of probabilities, and the hidden state, after the pending token (root_state) and after the token before it
  //! (previous_state, which is empty if it is not known). Both are there from the time at which the root was asked
  //! about until the end of the round. The hidden state is empty if the backend keeps none.
  //!
  //! Pre         keep_states() was called before reserve()
  model_state<number> root_state() const { return state(0); }
  model_state<number> previous_state() const { return knows_previous_ ? state(max_nodes_ + 1) : model_state<number>{}; }

  void commit(tree_view tree, verdict v) {
    // Past the end of the cache there is nothing to follow: no round can open until begin() gives a shorter text.
    if (text_.size() > static_cast<std::size_t>(capacity())) return;
    const std::span<const std::int32_t> kept = columns_.path(tree, v.accepted);
    append_committed(text_, tree, v);
    kv_.commit(sequence_, kept);
    n_committed_ = kv_.size(sequence_);
    if constexpr (PrefixKVStore<kv_type>) held_.remember(kv_, sequence_, text_, kv_.size(sequence_));
    const std::int32_t row = row_of_[static_cast<std::size_t>(v.accepted)];
    knows_previous_ = keeps_states_ && row >= 0 && !has_processor();  // with a processor, the row is not the model's
    if (knows_previous_) keep_as_previous(row);
    close_round();
  }

  //! Seconds spent in the draft model since construction.
  double forward_seconds() const { return forward_seconds_; }

 private:
  std::span<const token_id> tokens() const { return detail::tokens_of(backend_); }
  bool has_processor() const { return ESPALIER_HOSTED != 0 && process_; }  // processors are for programs with a heap
  std::size_t offset(std::int32_t row) const { return static_cast<std::size_t>(std::ptrdiff_t{row} * vocab_size()); }

  // Truncates the cache to its leading rows that are rows of this text, at most n. Other rows may be there, because
  // another drafter has used the cache. If the store does not know its tokens, only a changed number of rows shows
  // that another drafter has used it.
  void keep(std::int32_t n) {
    if constexpr (PrefixKVStore<kv_type>)
      n = (std::min)(n, held_.of(kv_, sequence_, text_));
    else if (kv_.size(sequence_) != n_committed_)
      n = 0;
    kv_.truncate(sequence_, n);
    n_committed_ = kv_.size(sequence_);
    if constexpr (PrefixKVStore<kv_type>) held_.keep(kv_, sequence_);
  }

  void close_round() {
    std::fill(row_of_.begin(), row_of_.end(), -1);
    columns_.clear();
    n_rows_ = 0;
  }

  // Makes passes of this drafter alone, of `most` rows at most, until all rows that are wanted are known.
  void answer(std::int32_t most) {
    most = (std::min)(most, max_rows());
    for (;;) {
      batch_.clear();
      const std::int32_t n = add_rows(batch_, most);
      if (n == 0) return;
      if (n < 0) fail_for_room();
      take(forward(batch_), 0, 0);
    }
  }

  // Raises the error that says that the cache had no room for the text, or for nodes of a tree.
  void fail_for_room() const {
    if (n_to_read_ > 0) {
      raise<input_error>("a text of ", text_.size(), " tokens does not fit the draft model's cache of ", kv_.capacity(),
                         ", or its pages are used up.");
    }
    raise<input_error>(
        "the draft model's cache of ", kv_.capacity(),
        " tokens is full, or its pages are used up: the tree has outgrown its limit, or another decoder uses this "
        "drafter.");
  }

  // Notes as wanted the tokens of the committed text that the cache lacks, and at least the last n tokens, whose logits
  // are wanted, too.
  void want_text(std::int32_t n) {
    keep((std::max)(std::int32_t{0}, static_cast<std::int32_t>(text_.size()) - n));
    n_to_read_ = static_cast<std::int32_t>(text_.size()) - kv_.size(sequence_);
    n_outputs_ = (std::min)(n, n_to_read_);
  }

  void take_text(vocab_rows<number> logits, std::int32_t first_output, std::int32_t first_row) {
    prefill_.commit(kv_, sequence_, text_, n_added_);
    n_committed_ = kv_.size(sequence_);
    if constexpr (PrefixKVStore<kv_type>) held_.keep(kv_, sequence_);
    const std::int32_t n = outputs_of_next(n_added_), end = first_row + n_added_;
    n_to_read_ -= n_added_;
    if (n == 0) return;
    if (n == 2 || n_to_read_ > 0) {
      const auto before_last = static_cast<std::int32_t>(text_.size()) - 2;
      take_row(root_node, logits.row(first_output), end - n,
               row_origin::after_token(row_origin::model::draft, sequence_, before_last));
      keep_as_previous(0);
      knows_previous_ = true;
      n_rows_ = 0;
    }
    if (n_to_read_ == 0) take_row(root_node, logits.row(first_output + n - 1), end - 1, after_node(root_node));
  }

  // Number of rows of logits that a pass over the next n tokens gives: one for each of them that is among the last
  // n_outputs_ tokens of the text.
  std::int32_t outputs_of_next(std::int32_t n) const {
    return std::clamp<std::int32_t>(n_outputs_ - n_to_read_ + n, 0, n);
  }

  std::int32_t add_nodes(forward_batch& batch, std::span<const node_id> nodes) {
    const auto n = static_cast<std::int32_t>(nodes.size());
    const std::int32_t first_column = columns_.size();
    // All nodes are checked before the first row is added: the batch holds rows of other texts, too.
    columns_.give(tree_, nodes, row_of_[root_node] >= 0, vocab_size());
    const std::int32_t prefix = kv_.append(sequence_, n) - first_column;
    if (prefix < 0) {
      columns_.take_back(nodes, first_column);
      return -1;
    }
    batch.begin_sequence(sequence_, prefix, columns_.size());
    for (const node_id u : nodes)
      columns_.add_row(batch, tree_, u, prefix - 1, row_of_[static_cast<std::size_t>(u)] < 0);
    return n;
  }

  // Returns the nodes that need a pass, each after its ancestors that have not been in a pass yet. The rows of the
  // other nodes are made here, since the processor leaves one token after each.
  std::span<const node_id> unforced(std::span<const node_id> nodes) {
    const auto is_known = [&](node_id u) { return row_of_[static_cast<std::size_t>(u)] >= 0; };
    asked_.clear();
    for (const node_id u : nodes) {
      const bool is_node = root_node < u && u < tree_.n_nodes && static_cast<std::size_t>(u) < row_of_.size();
      if (is_node && is_known(u)) detail::require_askable(tree_, u, row_of_.size(), is_known);
      if (is_node && is_known(tree_.parent[u])) {
        detail::require_token(tree_, u, vocab_size());
        if (give_forced(tree_, u)) continue;
        columns_.find_missing(tree_, tree_.parent[u], asked_);
      }
      asked_.push_back(u);
    }
    return asked_;
  }

  // True if the processor leaves exactly one token after the node, and the vocabulary has it. The node's row is then
  // made without a pass: 1 for that token, 0 for all others.
  bool give_forced(tree_view tree, node_id u) {
    const std::optional<token_id> only = process_.only(tree, u);
    if (!only || *only < 0 || *only >= vocab_size()) return false;
    number* const row = rows_.get() + offset(n_rows_);
    std::fill_n(row, vocab_size(), number{0});
    row[*only] = 1;
    row_of_[static_cast<std::size_t>(u)] = n_rows_++;
    return true;
  }

  row_origin after_node(node_id u) const { return row_origin::after_node(row_origin::model::draft, sequence_, u); }

  void take_row(node_id u, std::span<const number> logits, std::int32_t batch_row, row_origin from) {
    const std::span<number> row{rows_.get() + offset(n_rows_), static_cast<std::size_t>(vocab_size())};
    row_processor<number> process;
    if (has_processor() && from.at == row_origin::kind::node) process = process_;
    writer_.write(tree_, u, logits, tokens(), process, sampler_, from, row);
    if constexpr (detail::KeepsHiddenStates<std::remove_reference_t<BackendT>>) {
      if (!hidden_.empty()) {
        const std::span<const float> state = backend_.hidden_state(batch_row);
        std::copy(state.begin(), state.end(), hidden_.begin() + hidden_offset(n_rows_));
      }
    }
    row_of_[static_cast<std::size_t>(u)] = n_rows_++;
  }

  std::ptrdiff_t hidden_offset(std::int32_t row) const { return static_cast<std::ptrdiff_t>(row) * hidden_size(); }

  model_state<number> state(std::int32_t row) const {
    const auto n = static_cast<std::size_t>(hidden_.empty() ? 0 : hidden_size());
    return {{rows_.get() + offset(row), static_cast<std::size_t>(vocab_size())},
            std::span(hidden_).subspan(static_cast<std::size_t>(row) * n, n)};
  }

  // Keeps a row of this round, and its state, as the row before the next round's root.
  void keep_as_previous(std::int32_t row) {
    const std::int32_t place = max_nodes_ + 1;
    std::copy_n(rows_.get() + offset(row), vocab_size(), rows_.get() + offset(place));
    if (!hidden_.empty())
      std::copy_n(hidden_.begin() + hidden_offset(row), hidden_size(), hidden_.begin() + hidden_offset(place));
  }

  BackendT backend_;
  KVStoreT kv_;
  sampler<number> sampler_;
  std::int32_t sequence_;
  held_prefix held_;
  std::int32_t n_committed_ = 0;  // number of cache rows of the sequence when this drafter last changed it
  std::int32_t max_nodes_ = 0, n_rows_ = 0;
  detail::list<token_id> text_;  // committed; the last token is pending
  detail::unset_numbers<number> rows_;
  bool keeps_states_ = false;
  bool knows_previous_ = false;  // row number max_nodes_ + 1, and its state, are of the token before the pending one
  detail::list<float> hidden_;   // [rows][hidden_size] by row; empty if states are not kept
  detail::list<std::int32_t> row_of_, renumbered_;
  detail::node_columns columns_;
  detail::list<node_id> asked_;  // see unforced()
  // Still wanted: n_to_read_ tokens of the text, with logits after its last n_outputs_ tokens; or else rows of nodes_.
  std::int32_t n_to_read_ = 0, n_outputs_ = 0;
  tree_view tree_{};
  std::span<const node_id> nodes_{};
  row_processor<number> process_;
  detail::row_writer<number> writer_;
  std::int32_t n_added_ = 0;  // number of rows added to the pass under way
  forward_batch batch_;
  prefill prefill_;
  double forward_seconds_ = 0;
};

template <class BackendT, class KVStoreT>
autoregressive(BackendT&&, KVStoreT&&, sampling_options = {}, std::int32_t = 0) -> autoregressive<BackendT, KVStoreT>;

// Arguments that do not fit: the compiler says why.
template <detail::Mistake MistakeT>
class autoregressive<MistakeT, MistakeT> {
 public:
  autoregressive(MistakeT, const auto&...);
};

template <class BackendT, class KVStoreT>
requires detail::Mistake<detail::model_mistake<std::remove_reference_t<BackendT>, std::remove_reference_t<KVStoreT>>>
autoregressive(BackendT&&, KVStoreT&&, sampling_options = {}, std::int32_t = 0)
->autoregressive<detail::model_mistake<std::remove_reference_t<BackendT>, std::remove_reference_t<KVStoreT>>,
                 detail::model_mistake<std::remove_reference_t<BackendT>, std::remove_reference_t<KVStoreT>>>;

}  // namespace espalier
