// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/backend.hpp"
#include "espalier/concepts/kv_store.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/model_state.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/require_token.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/drafter/nodes/renumber.hpp"
#include "espalier/drafter/nodes/require_askable.hpp"
#include "espalier/forward/checked_forward.hpp"
#include "espalier/forward/held_prefix.hpp"
#include "espalier/forward/prefill.hpp"
#include "espalier/sampling/sampler.hpp"

namespace espalier {

//! Drafts with a smaller language model through the same masked forward pass as the target: one pass for each call of
//! propose, so one a depth when a policy asks layer by layer. Siblings share the cache of their prefix and keep their
//! own rows; positions are those of the path.
//!
//! Backend and store are kept by reference when given as lvalues, by value otherwise.
//!
//! Complexity  propose: one pass over as many rows as nodes; no allocation after reserve()
//! Law         StepDrafter's and StateDrafter's; the rows are those of the draft model along each path, through the
//!             sampler
//! Errors      input_error for an empty context, and for a node that may not be asked about (StepDrafter) or whose
//!             token the model does not know; numeric_error as sampler's; what the backend throws, after
//!             which the next round opens as if the failed one had not been
template <class BackendT, class KVStoreT>
class autoregressive {
  using kv_type = std::remove_reference_t<KVStoreT>;
  static_assert(KVStore<kv_type>, "the second argument must be a KVStore");
  static_assert(Backend<std::remove_reference_t<BackendT>, kv_type>,
                "the first argument must be a Backend that can use this KVStore");
  using number = logit_number<std::remove_reference_t<BackendT>, kv_type>;

 public:
  autoregressive(BackendT&& backend, KVStoreT&& kv, sampling_options sampling = {.temperature = 1.0F},
                 std::int32_t sequence = 0)
      : backend_(std::forward<BackendT>(backend)),
        kv_(std::forward<KVStoreT>(kv)),
        sampler_(sampling),
        sequence_(sequence) {
    if constexpr (BoundedBackend<std::remove_reference_t<BackendT>>) {
      require_option("max_rows of the draft model", backend_.max_rows(), 1, 1 << 30);
    }
  }

  std::int32_t vocab_size() const { return backend_.vocab_size(); }
  std::int32_t capacity() const { return context_length(backend_, kv_); }

  void keep_states() { keeps_states_ = true; }
  std::int32_t hidden_size() const {
    if constexpr (HiddenBackend<std::remove_reference_t<BackendT>>) return backend_.hidden_size();
    return 0;
  }

  void reserve(std::int32_t max_nodes) {
    // A drafter that several decoders share has room for the largest.
    max_nodes_ = max_nodes = (std::max)(max_nodes, max_nodes_);
    const auto nodes = static_cast<std::size_t>(max_nodes) + 1;
    const std::size_t kept_rows = nodes + (keeps_states_ ? 1 : 0);
    const auto vocab = static_cast<std::size_t>(vocab_size());
    text_.reserve(static_cast<std::size_t>(capacity()) + nodes + 1);
    rows_.reset(new number[kept_rows * vocab]);
    hidden_.resize(keeps_states_ ? kept_rows * static_cast<std::size_t>(hidden_size()) : 0);
    knows_previous_ = false;
    row_of_.resize(nodes, -1);
    column_of_.resize(nodes, -1);
    token_of_.resize(nodes);
    renumbered_.resize(nodes);
    masks_.resize(nodes * static_cast<std::size_t>(words()));
    kept_.resize(nodes);
    batch_.reserve(max_nodes, max_nodes);
    sampler_.reserve(vocab_size());
    // Takes its memory now.
    if constexpr (PrefixKVStore<kv_type>)
      kv_.remember(sequence_, static_cast<std::int32_t>(kv_.prefix(sequence_).size()), {});
  }

  void begin(std::span<const token_id> context) {
    if (context.empty()) raise<input_error>("the context is empty; a drafter needs at least one token to go on from.");
    // Of a store that does not tell, what this drafter has seen is known.
    const auto end = text_.begin() + (std::min)(std::ssize(text_), std::ptrdiff_t{kv_.size(sequence_)});
    const auto common = std::mismatch(text_.begin(), end, context.begin(), context.end()).first - text_.begin();
    text_.assign(context.begin(), context.end());
    held_.begin();
    keep(PrefixKVStore<kv_type> ? static_cast<std::int32_t>(context.size()) : static_cast<std::int32_t>(common));
    knows_previous_ = false;
    close_round();
  }

  //! Forwards up to n tokens of a new text that the cache lacks, ahead of the first round. False once that needs no
  //! more.
  bool read_prompt(std::int32_t n) {
    keep(static_cast<std::int32_t>(text_.size()) - 1);
    // The last two tokens are for the round: their rows may be asked for.
    const std::int32_t left = static_cast<std::int32_t>(text_.size()) - 2 - kv_.size(sequence_);
    if (left <= 0 || text_.size() > static_cast<std::size_t>(capacity())) return false;
    const auto start = std::chrono::steady_clock::now();
    if (n > static_cast<std::int32_t>(prefill_.rows().size())) prefill_.reserve(n);
    prefill_.pass(backend_, kv_, sequence_, text_, (std::min)(n, left), 0, [](std::int32_t, std::int32_t) {});
    forward_time_ += std::chrono::steady_clock::now() - start;
    return static_cast<std::int32_t>(text_.size()) - 2 > kv_.size(sequence_);
  }

  void propose(tree_view tree, std::span<const node_id> nodes) {
    if (detail::opens_round(nodes, row_of_.size())) return open_round();
    std::int32_t most = max_nodes_;
    if constexpr (BoundedBackend<std::remove_reference_t<BackendT>>)
      most = std::min<std::int32_t>(most, backend_.max_rows());
    while (!nodes.empty()) {
      const auto n = (std::min)(nodes.size(), static_cast<std::size_t>(most));
      ask(tree, nodes.first(n));
      nodes = nodes.subspan(n);
    }
  }

  void renumber(std::span<const node_id> was) {
    detail::renumber(row_of_, renumbered_, was);
    detail::renumber(column_of_, renumbered_, was);
  }

  sampled_rows<number> rows() const { return {{{rows_.get(), n_rows_, vocab_size()}, row_of_.data()}}; }

  model_state<number> root_state() const { return state(0); }
  model_state<number> previous_state() const { return knows_previous_ ? state(max_nodes_ + 1) : model_state<number>{}; }

  void commit(tree_view tree, verdict v) {
    const std::int32_t length = tree.depth[v.accepted];
    // Past the end of the cache there is nothing to follow: no round can open until begin() gives a shorter text.
    if (text_.size() > static_cast<std::size_t>(capacity())) return;
    for (node_id u = v.accepted; u != root_node; u = tree.parent[u]) {
      const std::int32_t column = kept_[static_cast<std::size_t>(tree.depth[u]) - 1] =
          column_of_[static_cast<std::size_t>(u)];
      if (column >= 0 && token_of_[static_cast<std::size_t>(column)] != tree.token[u]) {
        raise<input_error>("node ", u, " was asked about as token ", token_of_[static_cast<std::size_t>(column)],
                           ", and is token ", tree.token[u],
                           " now: a policy that builds its tree anew says in was() which node was which.");
      }
    }
    append_committed(text_, tree, v);
    // Nodes are asked about after their parents: those with a cache row lead the path.
    std::size_t n = 0;
    while (n < static_cast<std::size_t>(length) && kept_[n] >= 0)
      ++n;
    kv_.commit(sequence_, std::span<const std::int32_t>(kept_).first(n));
    if constexpr (PrefixKVStore<kv_type>) held_.remember(kv_, sequence_, text_, kv_.size(sequence_));
    const std::int32_t row = row_of_[static_cast<std::size_t>(v.accepted)];
    knows_previous_ = keeps_states_ && row >= 0;
    if (knows_previous_) keep_as_previous(row);
    close_round();
  }

  //! Time spent in the draft model since construction.
  double forward_seconds() const { return std::chrono::duration<double>(forward_time_).count(); }

 private:
  std::int32_t words() const { return mask_words(max_nodes_); }
  std::size_t offset(std::int32_t row) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(vocab_size());
  }
  mask_row mask_of(node_id u) { return {masks_.data() + static_cast<std::ptrdiff_t>(u) * words(), words()}; }

  // Of the cache, what it holds of the text's beginning, n tokens at most: another part may have used it.
  void keep(std::int32_t n) {
    if constexpr (PrefixKVStore<kv_type>) n = (std::min)(n, held_.of(kv_, sequence_, text_));
    kv_.truncate(sequence_, n);
    if constexpr (PrefixKVStore<kv_type>) held_.keep(kv_, sequence_);
  }

  void close_round() {
    std::fill(row_of_.begin(), row_of_.end(), -1);
    std::fill(column_of_.begin(), column_of_.end(), -1);
    n_rows_ = n_columns_ = 0;
  }

  // Forwards the committed text that the cache lacks, at least its last token, whose logits are the root's row. It is
  // committed text, so its cache rows are committed, too.
  void open_round() {
    close_round();
    const std::int32_t n_rows = keeps_states_ && !knows_previous_ ? 2 : 1;
    keep((std::max)(std::int32_t{0}, static_cast<std::int32_t>(text_.size()) - n_rows));
    const auto start = std::chrono::steady_clock::now();
    std::int32_t last = 0;
    const auto logits =
        prefill_.run(backend_, kv_, sequence_, text_, n_rows, [&](std::int32_t, std::int32_t n) { last = n - 1; });
    forward_time_ += std::chrono::steady_clock::now() - start;
    if constexpr (PrefixKVStore<kv_type>) held_.keep(kv_, sequence_);
    if (logits.n_rows == 2) {
      take_row(
          root_node, logits.row(0), last - 1,
          row_origin::after_token(row_origin::model::draft, sequence_, static_cast<std::int32_t>(text_.size()) - 2));
      keep_as_previous(0);
      knows_previous_ = true;
      n_rows_ = 0;
    }
    take_row(root_node, logits.row(logits.n_rows - 1), last, after_node(root_node));
  }

  void ask(tree_view tree, std::span<const node_id> nodes) {
    const auto prefix = static_cast<std::int32_t>(text_.size());
    const auto n = static_cast<std::int32_t>(nodes.size());
    require_room(kv_.append(sequence_, n));
    batch_.clear();
    batch_.begin_sequence(sequence_, prefix, n_columns_ + n);
    for (const node_id u : nodes) {
      detail::require_askable(tree, u, row_of_.size(), [&](node_id v) {
        return (v == root_node ? row_of_ : column_of_)[static_cast<std::size_t>(v)] >= 0;
      });
      detail::require_token(tree, u, vocab_size());
      const std::int32_t column = n_columns_++;
      token_of_[static_cast<std::size_t>(column)] = tree.token[u];
      column_of_[static_cast<std::size_t>(u)] = column;
      const mask_row mask = mask_of(u);
      mask.clear();
      if (tree.parent[u] != root_node) mask.include(mask_of(tree.parent[u]));
      mask.set(column);
      batch_.add_row(tree.token[u], prefix - 1 + tree.depth[u], column, true).include(mask);
    }
    const auto start = std::chrono::steady_clock::now();
    const auto logits = checked_forward(backend_, kv_, batch_.view());
    forward_time_ += std::chrono::steady_clock::now() - start;
    for (std::int32_t i = 0; i < n; ++i) {
      const node_id u = nodes[static_cast<std::size_t>(i)];
      take_row(u, logits.row(i), i, after_node(u));
    }
  }

  row_origin after_node(node_id u) const { return row_origin::after_node(row_origin::model::draft, sequence_, u); }

  void take_row(node_id u, std::span<const number> logits, std::int32_t batch_row, row_origin from) {
    sampler_.probabilities(logits, {rows_.get() + offset(n_rows_), logits.size()}, from);
    if constexpr (HiddenBackend<std::remove_reference_t<BackendT>>) {
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

  // What a row of this round said stays known for the next.
  void keep_as_previous(std::int32_t row) {
    const std::int32_t place = max_nodes_ + 1;
    std::copy_n(rows_.get() + offset(row), vocab_size(), rows_.get() + offset(place));
    if (!hidden_.empty())
      std::copy_n(hidden_.begin() + hidden_offset(row), hidden_size(), hidden_.begin() + hidden_offset(place));
  }

  void require_room(std::int32_t first_slot) const {
    if (first_slot < 0)
      raise<input_error>(
          "the draft model's cache of ", capacity(),
          " tokens is full, or its pages are used up: the tree has outgrown its limit, or another decoder "
          "uses this drafter.");
  }

  BackendT backend_;
  KVStoreT kv_;
  sampler<number> sampler_;
  std::int32_t sequence_;
  held_prefix held_;
  std::int32_t max_nodes_ = 0;
  std::vector<token_id> text_;  // committed; the last token is pending
  std::unique_ptr<number[]> rows_;
  std::int32_t n_rows_ = 0;
  std::int32_t n_columns_ = 0;  // scratch slots in use
  bool keeps_states_ = false;
  bool knows_previous_ = false;  // the row after the last, and its state, are those of the token before the pending one
  std::vector<float> hidden_;    // [rows][hidden_size] by row, where states are kept
  std::vector<std::int32_t> row_of_;
  std::vector<std::int32_t> column_of_;
  std::vector<token_id> token_of_;  // [nodes] by column
  std::vector<std::int32_t> renumbered_;
  std::vector<std::uint32_t> masks_;
  std::vector<std::int32_t> kept_;
  forward_batch batch_;
  prefill prefill_;
  std::chrono::steady_clock::duration forward_time_{};
};

template <class BackendT, class KVStoreT>
autoregressive(BackendT&&, KVStoreT&&) -> autoregressive<BackendT, KVStoreT>;
template <class BackendT, class KVStoreT>
autoregressive(BackendT&&, KVStoreT&&, sampling_options) -> autoregressive<BackendT, KVStoreT>;
template <class BackendT, class KVStoreT>
autoregressive(BackendT&&, KVStoreT&&, sampling_options, std::int32_t) -> autoregressive<BackendT, KVStoreT>;

}  // namespace espalier
