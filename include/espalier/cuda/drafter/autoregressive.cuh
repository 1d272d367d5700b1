// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/concepts/backend.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/concepts/backend.cuh"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/concepts/model_states.cuh"
#include "espalier/cuda/concepts/processor.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/drafter/draft_batch.cuh"
#include "espalier/cuda/drafter/token_rows.cuh"
#include "espalier/cuda/forward/prefill.cuh"
#include "espalier/sampling/sampler.hpp"

namespace espalier::cuda {

//! espalier::autoregressive on the device: one masked pass of a smaller model for each call of propose, over the nodes
//! of all texts.
//!
//! Backend and store are kept by reference when given as lvalues, by value otherwise. The text in place i has sequence
//! number `sequence` + i of the store.
//!
//! Shapes      rows() [places][max_nodes + 1][vocab], the row of a node at the number that the node had when it was
//!             asked about; one row more for each place if states are kept
//! Complexity  propose: one pass over as many rows for each lane as the list has entries, padding included. For the
//!             root there are two rows, the text's last two tokens; in a joint whose other drafters may have brought in
//!             n tokens there are n + 1 rows, and at least two. No synchronisation, no allocation
//! Law         StepDrafter's; given the same logits, the rows are the host's. Over a model with columns for some tokens
//!             alone, a text's processor does not change them: tokens that it forbids may be drafted, and are then
//!             rejected
//! Errors      option_error if `sequence` is no sequence of the store, the model takes fewer rows than rounds of all
//!             texts may ask about, or the store has fewer sequences, from `sequence` on, than there are texts, or too
//!             little room after a recurrent state; input_error for an empty context; faults of the draft's logits
template <class BackendT, class KVStoreT>
class autoregressive {
  using backend_type = std::remove_reference_t<BackendT>;
  using kv_type = std::remove_reference_t<KVStoreT>;
  static_assert(KVStore<kv_type>, "the second argument must be a KV store on the device: cuda::KVStore");
  static_assert(Backend<backend_type, kv_type>,
                "the first argument must be a backend on the device that can use this store: cuda::Backend");
  static_assert(!espalier::detail::IsOutside<backend_type>,
                "on the device a draft model's passes are made inside the decoder: an outside_backend stands for the "
                "target alone");

 public:
  using number = typename backend_type::number;

  autoregressive(BackendT&& backend, KVStoreT&& kv, sampling_options sampling = {.temperature = 1.0F},
                 std::int32_t sequence = 0)
      : backend_(std::forward<BackendT>(backend)),
        kv_(std::forward<KVStoreT>(kv)),
        rows_(sampling),
        sequence_(sequence) {
    require_option("sequence", sequence, 0, kv_.n_sequences() - 1);
  }

  std::int32_t vocab_size() const { return backend_.vocab_size(); }
  std::int32_t capacity() const { return (std::min)(backend_.max_positions(), kv_.capacity()); }

  //! Prepares for rounds that accept up to n_tokens tokens that this drafter was not asked about. Called before
  //! reserve().
  void catch_up(std::int32_t n_tokens) { n_pending_ = (std::max)(n_tokens + 1, 2); }

  //! Makes the drafter keep what states() returns. Called before reserve(); decoders call it for policies such as
  //! neural_delayed.
  void keep_states() { keeps_states_ = true; }
  std::int32_t hidden_size() const { return detail::hidden_rows_of(backend_).size; }

  void reserve(std::int32_t max_nodes, std::int32_t max_texts, fault* found) {
    require_option("max_rows of the draft model", backend_.max_rows(), max_texts * (std::max)(max_nodes, n_pending_),
                   1 << 30);
    require_option("sequences of the draft's cache", kv_.n_sequences(), sequence_ + max_texts, 1 << 30);
    require_rows(kv_, max_nodes + n_pending_);
    found_ = found;
    const std::int32_t nodes = max_nodes + (keeps_states_ ? 1 : 0);
    batch_ = draft_batch(nodes, max_texts, sequence_, capacity(), n_pending_, keeps_states_);
    n_nodes_ = nodes + 1;
    row_of_ = device_array<std::int32_t>(static_cast<std::size_t>(n_nodes_) * static_cast<std::size_t>(max_texts));
    rows_.reserve(n_nodes_, max_texts, vocab_size(), columns(), tokens());
  }

  void begin(std::int32_t place, text_view text, std::span<const token_id> context, std::int32_t n_known,
             cudaStream_t stream) {
    if (context.empty()) raise<input_error>("the context is empty; a drafter needs at least one token to go on from.");
    is_open_ = false;
    // The first pass of a round forwards the last n_pending_ tokens of the text in any case, so the cache may lack the
    // rows of the last n_pending_ - 1 of the n_known tokens.
    const std::int32_t held = (std::min)(static_cast<std::int32_t>(context.size()), capacity());
    const std::int32_t last = (std::max)(0, held - n_pending_);
    // A recurrent state may have seen more than these, so the text is read again.
    std::int32_t first = cuda::keeps_states(kv_) ? 0 : (std::min)((std::max)(0, n_known + 1 - n_pending_), last);
    if constexpr (SharingKVStore<kv_type>) {
      const auto needed = context.first(static_cast<std::size_t>(last));
      if (n_known == 0) first = kv_.adopt(sequence_ + place, needed, stream);
      kv_.truncate(sequence_ + place, first);  // further rows are written anew
      prefill_.run(backend_, kv_, sequence_ + place, text, first, last, stream);
      if constexpr (detail::KeepsFailure<backend_type>) {  // rows that were not computed must not be remembered
        require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        backend_.raise_failure();
      }
      kv_.remember(sequence_ + place, first, needed.subspan(static_cast<std::size_t>(first)));
    } else {
      prefill_.run(backend_, kv_, sequence_ + place, text, first, last, stream);
    }
  }

  //! Throws the exception that a model of the host has thrown since the last call, if there is one.
  void raise_failure() requires detail::KeepsFailure<backend_type> { backend_.raise_failure(); }

  void process_rows(row_processor<number> process) { process_ = process; }

  void release(std::int32_t place) requires SharingKVStore<kv_type> { kv_.truncate(sequence_ + place, 0); }

  void ensure(std::int32_t place, std::int32_t n, cudaStream_t stream) {
    kv_.ensure(sequence_ + place, (std::min)(n, capacity()), stream);
  }

  void propose(const text_batch& texts, node_list nodes, cudaStream_t stream) {
    const bool opens = !is_open_;
    const forward_batch_view batch = opens ? batch_.root(texts, stream) : batch_.level(texts, nodes, stream);
    if (opens) row_of_.fill_bytes(0xFF, stream);
    is_open_ = true;
    const vocab_rows<number> logits = backend_.forward(kv_, batch, stream);
    const node_list asked = batch_.asked(batch.n_outputs / texts.n);
    if (process_ && tokens() == nullptr) process_(texts, asked, logits, stream);
    rows_.make(logits, texts, asked, row_of_.data(), found_,
               row_origin::after_node(row_origin::model::draft, sequence_, root_node), stream);
    if (opens && keeps_states_) {
      // These rows pass through no processor. Faults of them name the row, since its token is no node.
      rows_.make(logits, texts, batch_.before(), row_of_.data(), found_,
                 row_origin(row_origin::model::draft, row_origin::kind::row, 0, sequence_), stream);
    }
  }

  //! The rows and hidden states after the last two tokens of each text.
  //!
  //! Pre         keep_states() was called before reserve()
  detail::draft_states states() const { return {rows(), n_nodes_ - 1, detail::hidden_rows_of(backend_), n_pending_}; }

  text_rows rows() const { return {rows_.all(), row_of_.data(), n_nodes_}; }

  void renumber(const text_batch& texts, moved_nodes moved, cudaStream_t stream) const {
    batch_.renumber(texts, moved, row_of_.data(), stream);
  }

  void commit(const text_batch& texts, path_view path, cudaStream_t stream) {
    if (is_open_) batch_.commit(kv_, texts, path, stream);
    is_open_ = false;
  }

 private:
  const token_id* tokens() const {
    if constexpr (requires { backend_.tokens(); }) return backend_.tokens();
    return nullptr;
  }
  std::int32_t columns() const {
    if constexpr (requires { backend_.columns(); }) return backend_.columns();
    return vocab_size();
  }

  BackendT backend_;
  KVStoreT kv_;
  detail::token_rows<number> rows_;
  std::int32_t sequence_;
  fault* found_ = nullptr;
  row_processor<number> process_;
  draft_batch batch_;
  prefill prefill_;
  device_array<std::int32_t> row_of_;
  std::int32_t n_nodes_ = 0;
  std::int32_t n_pending_ = 2;  // number of tokens that the draft's cache may lack when a round begins
  bool keeps_states_ = false;
  bool is_open_ = false;  // whether nodes were asked about in the round that is being enqueued
};

template <class BackendT, class KVStoreT>
autoregressive(BackendT&&, KVStoreT&&) -> autoregressive<BackendT, KVStoreT>;
template <class BackendT, class KVStoreT>
autoregressive(BackendT&&, KVStoreT&&, sampling_options) -> autoregressive<BackendT, KVStoreT>;
template <class BackendT, class KVStoreT>
autoregressive(BackendT&&, KVStoreT&&, sampling_options, std::int32_t) -> autoregressive<BackendT, KVStoreT>;

}  // namespace espalier::cuda
