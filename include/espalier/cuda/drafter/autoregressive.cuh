// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/cuda/concepts/backend.cuh"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/concepts/processor.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/moved_nodes.cuh"
#include "espalier/cuda/drafter/autoregressive/draft_batch.cuh"
#include "espalier/cuda/forward/prefill.cuh"
#include "espalier/cuda/sampling/sampler.cuh"
#include "espalier/sampling/sampler.hpp"

namespace espalier::cuda {

//! espalier::autoregressive on the device: one masked pass of a smaller model for each call of propose, over the nodes
//! of all texts.
//!
//! Backend and store are kept by reference when given as lvalues, by value otherwise. The text in place i has the
//! store's sequence number i from `sequence` on.
//!
//! Shapes      rows() [places][max_nodes + 1][vocab], the row of node u at u
//! Complexity  propose: one pass over as many rows for each lane as the list has entries, padding included, over two
//!             rows for the root: the text's last two tokens; in a joint the text's last tokens, as many as another
//!             drafter may have brought in, and one. No synchronisation, no allocation
//! Law         StepDrafter's; given the same logits, the rows are the host's
//! Errors      option_error where the model takes fewer rows than rounds of all texts may ask about, or the store has
//!             fewer sequences than there are texts; faults of the draft's logits
template <class BackendT, class KVStoreT>
class autoregressive {
  using backend_type = std::remove_reference_t<BackendT>;
  using kv_type = std::remove_reference_t<KVStoreT>;
  static_assert(KVStore<kv_type>, "the second argument must be a KV store on the device: cuda::KVStore");
  static_assert(Backend<backend_type, kv_type>,
                "the first argument must be a backend on the device that can use this store: cuda::Backend");

 public:
  using number = typename backend_type::number;

  autoregressive(BackendT&& backend, KVStoreT&& kv, sampling_options sampling = {.temperature = 1.0F},
                 std::int32_t sequence = 0)
      : backend_(std::forward<BackendT>(backend)),
        kv_(std::forward<KVStoreT>(kv)),
        sampler_(sampling),
        sequence_(sequence) {
    require_option("sequence", sequence, 0, kv_.n_sequences() - 1);
  }

  std::int32_t vocab_size() const { return backend_.vocab_size(); }
  std::int32_t capacity() const { return (std::min)(backend_.max_positions(), kv_.capacity()); }

  //! Rounds may accept so many tokens that it was not asked about. Before reserve.
  void catch_up(std::int32_t n_tokens) { n_pending_ = (std::max)(n_tokens + 1, 2); }

  void reserve(std::int32_t max_nodes, std::int32_t max_texts, fault* found) {
    require_option("max_rows of the draft model", backend_.max_rows(), max_texts * (std::max)(max_nodes, n_pending_),
                   1 << 30);
    require_option("sequences of the draft's cache", kv_.n_sequences(), sequence_ + max_texts, 1 << 30);
    found_ = found;
    batch_ = draft_batch(max_nodes, max_texts, sequence_, capacity(), n_pending_);
    n_nodes_ = max_nodes + 1;
    row_of_ = device_array<std::int32_t>(static_cast<std::size_t>(n_nodes_) * static_cast<std::size_t>(max_texts));
    rows_ = device_array<float>(row_of_.size() * static_cast<std::size_t>(vocab_size()));
    sampler_.reserve(n_nodes_, vocab_size());
  }

  void begin(std::int32_t place, text_view text, std::span<const token_id> context, std::int32_t n_known,
             cudaStream_t stream) {
    if (context.empty()) raise<input_error>("the context is empty; a drafter needs at least one token to go on from.");
    is_open_ = false;
    // The last n_pending_ tokens are forwarded with each round's root; the rows of as many known ones but one may be
    // missing.
    const std::int32_t held = (std::min)(static_cast<std::int32_t>(context.size()), capacity());
    const std::int32_t last = (std::max)(0, held - n_pending_);
    std::int32_t first = (std::min)((std::max)(0, n_known + 1 - n_pending_), last);
    if constexpr (SharingKVStore<kv_type>) {
      const auto needed = context.first(static_cast<std::size_t>(last));
      if (n_known == 0) first = kv_.adopt(sequence_ + place, needed, stream);
      kv_.truncate(sequence_ + place, first);  // to be written anew
      prefill_.run(backend_, kv_, sequence_ + place, text, first, last, stream);
      if constexpr (FailingBackend<backend_type>) {  // rows that were not computed are not to be found
        require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        backend_.raise_failure();
      }
      kv_.remember(sequence_ + place, first, needed.subspan(static_cast<std::size_t>(first)));
    } else {
      prefill_.run(backend_, kv_, sequence_ + place, text, first, last, stream);
    }
  }

  //! What a model of the host has thrown since the last call.
  void raise_failure() requires FailingBackend<backend_type> { backend_.raise_failure(); }

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
    if (process_) process_(texts, asked, logits, stream);
    sampler_.run(logits, texts, asked, rows_.data(), row_of_.data(), n_nodes_, found_,
                 row_origin::after_node(row_origin::model::draft, sequence_, root_node), stream);
  }

  text_rows rows() const {
    return {{rows_.data(), static_cast<std::int32_t>(row_of_.size()), vocab_size()}, row_of_.data(), n_nodes_};
  }

  void renumber(const text_batch& texts, moved_nodes moved, cudaStream_t stream) const {
    batch_.renumber(texts, moved, row_of_.data(), stream);
  }

  void commit(const text_batch& texts, path_view path, cudaStream_t stream) {
    if (is_open_) batch_.commit(kv_, texts, path, stream);
    is_open_ = false;
  }

 private:
  BackendT backend_;
  KVStoreT kv_;
  sampler<number> sampler_;
  std::int32_t sequence_;
  fault* found_ = nullptr;
  row_processor<number> process_;
  draft_batch batch_;
  prefill prefill_;
  device_array<float> rows_;
  device_array<std::int32_t> row_of_;
  std::int32_t n_nodes_ = 0;
  std::int32_t n_pending_ = 2;  // tokens that its cache may lack when a round begins
  bool is_open_ = false;        // whether nodes were asked about in the round that is being enqueued
};

template <class BackendT, class KVStoreT>
autoregressive(BackendT&&, KVStoreT&&) -> autoregressive<BackendT, KVStoreT>;
template <class BackendT, class KVStoreT>
autoregressive(BackendT&&, KVStoreT&&, sampling_options) -> autoregressive<BackendT, KVStoreT>;
template <class BackendT, class KVStoreT>
autoregressive(BackendT&&, KVStoreT&&, sampling_options, std::int32_t) -> autoregressive<BackendT, KVStoreT>;

}  // namespace espalier::cuda
