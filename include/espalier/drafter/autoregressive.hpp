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

#include "espalier/backend/checked_forward.hpp"
#include "espalier/backend/prefill.hpp"
#include "espalier/concepts/backend.hpp"
#include "espalier/concepts/kv_store.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/drafter/model_state.hpp"
#include "espalier/drafter/renumber.hpp"
#include "espalier/sampling/sampler.hpp"

namespace espalier {

//! Drafts with a smaller language model through the same masked forward pass as the target: one pass for each call of
//! propose, so one a depth when a policy asks layer by layer. Siblings share the cache of their prefix and keep their own
//! rows; positions are those of the path.
//!
//! Backend and store are kept by reference when given as lvalues, by value otherwise.
//!
//! Complexity  propose: one pass over as many rows as nodes; no allocation after reserve()
//! Law         StepDrafter's and StateDrafter's; the rows are those of the draft model along each path, through the sampler
//! Errors      input_error for an empty context; numeric_error for logits that are not finite; what the backend throws, after
//!             which the next round opens as if the failed one had not been
template <class BackendT, class KVStoreT>
class autoregressive {
  static_assert(KVStore<std::remove_reference_t<KVStoreT>>, "the second argument must be a KVStore");
  static_assert(Backend<std::remove_reference_t<BackendT>, std::remove_reference_t<KVStoreT>>,
                "the first argument must be a Backend that can use this KVStore");
  using number = logit_number<std::remove_reference_t<BackendT>, std::remove_reference_t<KVStoreT>>;

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
    renumbered_.resize(nodes);
    masks_.resize(nodes * static_cast<std::size_t>(words()));
    kept_.resize(nodes);
    batch_.reserve((std::max)(max_nodes, prefill::chunk), (std::max)(max_nodes, prefill::chunk));
    prefill_.reserve();
    sampler_.reserve(vocab_size());
  }

  void begin(std::span<const token_id> context) {
    if (context.empty()) raise<input_error>("the context is empty; a drafter needs at least one token to go on from.");
    kv_.truncate(sequence_, 0);
    text_.assign(context.begin(), context.end());
    knows_previous_ = false;
    close_round();
  }

  vocab_rows<number> propose(tree_view tree, std::span<const node_id> nodes) {
    if (nodes.size() == 1 && nodes[0] == root_node) return open_round();
    const std::int32_t first = n_rows_;
    std::int32_t most = max_nodes_;
    if constexpr (BoundedBackend<std::remove_reference_t<BackendT>>)
      most = std::min<std::int32_t>(most, backend_.max_rows());
    while (!nodes.empty()) {
      const auto n = (std::min)(nodes.size(), static_cast<std::size_t>(most));
      ask(tree, nodes.first(n));
      nodes = nodes.subspan(n);
    }
    return {rows_.get() + offset(first), n_rows_ - first, vocab_size()};
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
    append_committed(text_, tree, v);
    for (node_id u = v.accepted; u != root_node; u = tree.parent[u])
      kept_[static_cast<std::size_t>(tree.depth[u]) - 1] = column_of_[static_cast<std::size_t>(u)];
    // Nodes are asked about after their parents: those with a cache row lead the path.
    std::size_t n = 0;
    while (n < static_cast<std::size_t>(length) && kept_[n] >= 0)
      ++n;
    kv_.commit(sequence_, std::span<const std::int32_t>(kept_).first(n));
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

  void close_round() {
    std::fill(row_of_.begin(), row_of_.end(), -1);
    std::fill(column_of_.begin(), column_of_.end(), -1);
    n_rows_ = n_columns_ = 0;
  }

  // Forwards the committed text that the cache lacks, at least its last token, whose logits are the root's row. It is
  // committed text, so its cache rows are committed, too.
  vocab_rows<number> open_round() {
    close_round();
    const auto length = static_cast<std::int32_t>(text_.size());
    kv_.truncate(sequence_, length - 1);
    const auto start = std::chrono::steady_clock::now();
    std::int32_t last = 0;
    const auto logits = prefill_.run(
        backend_, kv_, sequence_, text_, 0, [&](std::int32_t, std::int32_t n) { last = n - 1; },
        keeps_states_ && !knows_previous_ ? 2 : 1);
    forward_time_ += std::chrono::steady_clock::now() - start;
    if (logits.n_rows == 2) {
      take_row(root_node, logits.row(0), last - 1);
      keep_as_previous(0);
      knows_previous_ = true;
      n_rows_ = 0;
    }
    take_row(root_node, logits.row(logits.n_rows - 1), last);
    return {rows_.get(), 1, vocab_size()};
  }

  void ask(tree_view tree, std::span<const node_id> nodes) {
    const auto prefix = static_cast<std::int32_t>(text_.size());
    const auto n = static_cast<std::int32_t>(nodes.size());
    require_room(kv_.append(sequence_, n));
    batch_.clear();
    batch_.begin_sequence(sequence_, prefix, n_columns_ + n);
    for (const node_id u : nodes) {
      const std::int32_t column = n_columns_++;
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
    for (std::int32_t i = 0; i < n; ++i)
      take_row(nodes[static_cast<std::size_t>(i)], logits.row(i), i);
  }

  void take_row(node_id u, std::span<const number> logits, std::int32_t batch_row) {
    sampler_.probabilities(logits, {rows_.get() + offset(n_rows_), logits.size()}, n_rows_);
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
    if (first_slot < 0) raise<input_error>("the draft model's cache of ", capacity(), " tokens is full.");
  }

  BackendT backend_;
  KVStoreT kv_;
  sampler<number> sampler_;
  std::int32_t sequence_;
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
