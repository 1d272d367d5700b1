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
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/drafter/autoregressive/draft_batch.cuh"
#include "espalier/cuda/forward/prefill.cuh"
#include "espalier/cuda/sampling/sampler.cuh"
#include "espalier/sampling/sampler.hpp"

namespace espalier::cuda {

//! espalier::autoregressive on the device: one masked pass of a smaller model for each call of propose.
//!
//! Backend and store are kept by reference when given as lvalues, by value otherwise.
//!
//! Shapes      rows() [max_nodes + 1][vocab], the row of node u at u
//! Complexity  propose: one pass over as many rows as the list has entries, padding included, over two rows for the
//!             root: the text's last two tokens. No synchronisation, no allocation
//! Law         StepDrafter's; given the same logits, the rows are the host's
//! Errors      option_error where the model takes fewer rows than a round may ask about; faults of the draft's logits
template <class BackendT, class KVStoreT>
class autoregressive {
  using backend_type = std::remove_reference_t<BackendT>;
  using kv_type = std::remove_reference_t<KVStoreT>;
  static_assert(KVStore<kv_type>, "the second argument must be a KV store on the device: cuda::KVStore");
  static_assert(Backend<backend_type, kv_type>,
                "the first argument must be a backend on the device that can use this store: cuda::Backend");
  using number = typename backend_type::number;

 public:
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

  void reserve(std::int32_t max_nodes, text_view text, fault* found) {
    require_option("max_rows of the draft model", backend_.max_rows(), (std::max)(max_nodes, 2), 1 << 30);
    text_ = text;
    found_ = found;
    batch_ = draft_batch(max_nodes, sequence_, text, capacity());
    const auto nodes = static_cast<std::size_t>(max_nodes) + 1;
    rows_ = device_array<float>(nodes * static_cast<std::size_t>(vocab_size()));
    row_of_ = device_array<std::int32_t>(nodes);
    sampler_.reserve(max_nodes + 1, vocab_size());
  }

  void begin(std::span<const token_id> context, std::int32_t n_known, cudaStream_t stream) {
    if (context.empty()) raise<input_error>("the context is empty; a drafter needs at least one token to go on from.");
    is_open_ = false;
    // The last two tokens are forwarded with each round's root; the row of the last known token may be missing.
    const auto last = (std::min)(static_cast<std::int32_t>(context.size()), capacity()) - 2;
    prefill_.run(backend_, kv_, sequence_, text_, (std::max)(0, n_known - 1), last, stream);
  }

  void ensure(std::int32_t n, std::int32_t max_context, cudaStream_t stream) {
    kv_.ensure(sequence_, (std::min)(n, capacity()), stream);
    max_context_ = (std::min)(max_context, capacity());
  }

  void propose(tree_writer tree, node_list nodes, cudaStream_t stream) {
    const bool opens = !is_open_;
    is_open_ = true;
    const forward_batch_view batch =
        opens ? batch_.root(max_context_, stream) : batch_.level(tree, nodes, max_context_, stream);
    if (opens) row_of_.fill_bytes(0xFF, stream);
    const vocab_rows<number> logits = backend_.forward(kv_, batch, stream);
    sampler_.run(logits, batch_.asked(batch.n_outputs), rows_.data(), row_of_.data(), found_,
                 row_origin::after_node(row_origin::model::draft, sequence_, root_node), stream);
  }

  node_rows<float> rows() const {
    return {{rows_.data(), static_cast<std::int32_t>(row_of_.size()), vocab_size()}, row_of_.data()};
  }

  void commit(tree_writer, path_view path, cudaStream_t stream) {
    if (is_open_) batch_.commit(kv_, path, stream);
    is_open_ = false;
  }

 private:
  BackendT backend_;
  KVStoreT kv_;
  sampler<number> sampler_;
  std::int32_t sequence_;
  text_view text_;
  fault* found_ = nullptr;
  draft_batch batch_;
  prefill prefill_;
  device_array<float> rows_;
  device_array<std::int32_t> row_of_;
  std::int32_t max_context_ = 0;
  bool is_open_ = false;
};

template <class BackendT, class KVStoreT>
autoregressive(BackendT&&, KVStoreT&&) -> autoregressive<BackendT, KVStoreT>;
template <class BackendT, class KVStoreT>
autoregressive(BackendT&&, KVStoreT&&, sampling_options) -> autoregressive<BackendT, KVStoreT>;
template <class BackendT, class KVStoreT>
autoregressive(BackendT&&, KVStoreT&&, sampling_options, std::int32_t) -> autoregressive<BackendT, KVStoreT>;

}  // namespace espalier::cuda
