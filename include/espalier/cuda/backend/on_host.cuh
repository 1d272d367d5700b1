// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/backend.hpp"
#include "espalier/config.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_mask.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/host_failure.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/kv_store/on_host_kv.cuh"
#include "espalier/forward/checked_forward.hpp"

namespace espalier::cuda {

namespace detail {

// A copy of a batch of the device, in pinned memory that host and device can reach. Kernels get the view by value.
//
// Shapes      as forward_batch_view; mask [rows][words] begins at each row's first scratch slot; too_wide [rows]:
//             whether the row sees a slot for which the copy of its mask has no bit
struct batch_copy_view {
  token_id* tokens;
  std::int32_t* positions;
  std::int32_t* slots;
  std::int32_t* sequence_of;
  std::int32_t* outputs;
  std::int32_t* too_wide;
  batch_sequence* sequences;
  std::uint32_t* mask;
  std::int32_t words;
};

inline constexpr int bring_batch_threads = 128;

// Copies a batch; a block works for a row.
template <class UnusedT = void>
ESPALIER_KERNEL void bring_batch(forward_batch_view from, batch_copy_view to) {
  const auto row = static_cast<std::int32_t>(blockIdx.x), thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t s = from.sequence_of[row];
  if (thread == 0) {
    to.tokens[row] = from.tokens[row];
    to.positions[row] = from.positions[row];
    to.slots[row] = from.slots[row];
    to.sequence_of[row] = s;
    to.too_wide[row] = 0;
    if (row < from.n_outputs) to.outputs[row] = from.outputs != nullptr ? from.outputs[row] : row;
  }
  if (row == 0) {
    for (std::int32_t i = thread; i < from.n_sequences; i += bring_batch_threads)
      to.sequences[i] = from.sequences[i];
  }
  if (s < 0) return;
  __syncthreads();
  const batch_sequence sequence = from.sequences[s];
  const std::uint32_t* mask =
      from.mask + sequence.mask_begin + static_cast<std::int64_t>(row - sequence.row_begin) * sequence.mask_words;
  std::uint32_t* copy = to.mask + static_cast<std::int64_t>(row) * to.words;
  const std::int32_t most = sequence.mask_words > to.words ? sequence.mask_words : to.words;
  for (std::int32_t word = thread; word < most; word += bring_batch_threads) {
    const std::uint32_t bits = word < sequence.mask_words ? mask[word] : 0U;
    if (word < to.words) {
      copy[word] = bits;
    } else if (bits != 0) {
      to.too_wide[row] = 1;
    }
  }
}

class batch_copy {
 public:
  batch_copy(std::int32_t max_rows, std::int32_t words)
      : rows_(max_rows),
        words_(words),
        numbers_(6 * static_cast<std::size_t>(max_rows)),
        sequences_(static_cast<std::size_t>(max_rows)),
        mask_(static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(words)) {}

  batch_copy_view view() const {
    std::int32_t* n = numbers_.data();
    return {
        n,     n + rows_, n + 2 * rows_, n + 3 * rows_, n + 4 * rows_, n + 5 * rows_, sequences_.data(), mask_.data(),
        words_};
  }

  // Enqueues the copy of a batch. Pre: the batch has at most max_rows rows and sequences, and no more outputs than rows
  void bring(const forward_batch_view& batch, cudaStream_t stream) const {
    launch("bring_batch", bring_batch<>, {.grid = static_cast<unsigned>(batch.n_rows), .threads = bring_batch_threads},
           stream, batch, view());
  }

 private:
  std::int32_t rows_;
  std::int32_t words_;
  pinned_array<std::int32_t> numbers_;
  pinned_array<batch_sequence> sequences_;
  pinned_array<std::uint32_t> mask_;
};

}  // namespace detail

struct on_host_options {
  std::int32_t max_rows = 257;      //!< longest batch, padding included
  std::int32_t max_columns = 1056;  //!< scratch slots that a row's mask may show

  static constexpr void describe(auto see) {
    see(option{"max_rows", &on_host_options::max_rows, "rows of the longest batch, padding included", 1, 1 << 16});
    see(option{"max_columns", &on_host_options::max_columns, "scratch slots that a row's mask may show", 1, 1 << 20});
  }
};

//! A backend on the device over a backend of the host, for an on_host_kv. The batch is copied to the host, the host's
//! model computes it, and its logits are copied back, all in the order of the stream.
//!
//!     cuda::on_host target(host_backend);
//!     cuda::on_host_kv kv(host_kv);
//!
//! The backend is kept by reference when given as an lvalue, by value otherwise.
//!
//! Complexity  a pass: one launch, one call on a thread of the CUDA runtime, one copy of n_outputs * vocab_size floats;
//!             no synchronisation, no allocation of device memory. A graph can capture a pass; this object must outlive
//!             the graph
//! Law         the host backend's; logits of double are rounded to float
//! Errors      option_error for an option out of range; input_error for more than max_rows rows, sequences or outputs.
//!             If the host's backend or cache throws, or a row sees scratch slots beyond max_columns, the logits become
//!             NaN, so that nothing is committed, and raise_failure() throws the exception
//! Pre         one stream; the host does not use backend and cache while work is under way; no more outputs than rows
template <class BackendT>
class on_host {
  using backend_type = std::remove_reference_t<BackendT>;

 public:
  using number = float;

  explicit on_host(BackendT&& backend, on_host_options options = {})
      : state_(std::make_unique<state>(std::forward<BackendT>(backend), require_options(options))) {}

  std::int32_t vocab_size() const { return state_->backend.vocab_size(); }
  std::int32_t max_rows() const { return state_->max_rows; }
  std::int32_t max_positions() const {
    if constexpr (requires(const backend_type& b) { b.max_positions(); }) {
      return state_->backend.max_positions();
    } else {
      return 1 << 30;
    }
  }

  template <class KVStoreT>
  requires espalier::Backend<backend_type, std::remove_reference_t<KVStoreT>> vocab_rows<float> forward(
      on_host_kv<KVStoreT>& kv, const forward_batch_view& batch, cudaStream_t stream) {
    state& s = *state_;
    require_room(batch.n_rows, " rows");
    require_room(batch.n_sequences, " sequences");
    require_room(batch.n_outputs, " outputs");
    if (batch.n_rows > 0) {
      s.copy.bring(batch, stream);
      require(cudaLaunchHostFunc(stream, &pass::run, &s.pass_of(&compute<KVStoreT>, &kv.rows(), batch)),
              "cudaLaunchHostFunc");
      const std::size_t numbers = static_cast<std::size_t>(batch.n_outputs) * static_cast<std::size_t>(vocab_size());
      if (numbers > 0) s.logits.upload(s.host_logits.span().first(numbers), stream);
    }
    return {s.logits.data(), batch.n_outputs, vocab_size()};
  }

  //! Throws the first exception that was thrown on the host since the last call, if there is one.
  void raise_failure() { state_->failure.raise(); }

 private:
  struct state;

  // The argument of a call on the host: a batch of one shape over one cache. Its address stays the same, so that a
  // graph may keep it.
  struct pass {
    void (*compute)(const pass&);
    state* self;
    void* kv;
    std::int32_t n_rows, n_sequences, n_outputs;

    static void run(void* data) {
      const auto& p = *static_cast<const pass*>(data);
      const auto n = static_cast<std::ptrdiff_t>(p.n_outputs) * p.self->backend.vocab_size();
      float* logits = p.self->host_logits.data();
      if (!p.self->failure.guard([&] { p.compute(p); })) std::fill(logits, logits + n, NAN);
    }
  };

  struct state {
    state(BackendT&& b, on_host_options options)
        : backend(std::forward<BackendT>(b)),
          max_rows(rows_of(backend, options)),
          max_columns(options.max_columns),
          copy(max_rows, mask_words(max_columns)),
          host_logits(static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(backend.vocab_size())),
          logits(host_logits.size()) {
      batch.reserve(max_rows, max_columns, max_rows);
      row_of.resize(static_cast<std::size_t>(max_rows));
      wanted.resize(row_of.size());
      output_of.resize(row_of.size());
    }

    pass& pass_of(void (*compute)(const pass&), void* kv, const forward_batch_view& b) {
      for (const auto& p : passes) {
        if (p->compute == compute && p->kv == kv && p->n_rows == b.n_rows && p->n_sequences == b.n_sequences &&
            p->n_outputs == b.n_outputs)
          return *p;
      }
      passes.push_back(std::make_unique<pass>(pass{compute, this, kv, b.n_rows, b.n_sequences, b.n_outputs}));
      return *passes.back();
    }

    BackendT backend;
    std::int32_t max_rows, max_columns;
    detail::batch_copy copy;
    pinned_array<float> host_logits;  // [max_rows][vocab_size]
    device_array<float> logits;       // [max_rows][vocab_size]
    forward_batch batch;
    std::vector<std::int32_t> row_of;     // batch row on the device -> row on the host, -1 for padding
    std::vector<std::int32_t> output_of;  // batch row on the device that gives logits -> row of the host's logits
    std::vector<char> wanted;
    std::vector<std::unique_ptr<pass>> passes;
    host_failure failure;
  };

  // Checks that a batch may have n rows, sequences or outputs. Errors: input_error
  void require_room(std::int32_t n, const char* what) const {
    if (n > state_->max_rows) {
      raise<input_error>("a batch has ", n, what, ", but the backend was built for at most ", state_->max_rows,
                         " (option max_rows).");
    }
  }

  static std::int32_t rows_of(const backend_type& backend, on_host_options options) {
    return (std::min)(options.max_rows, max_rows_of(backend));
  }

  // Computes one pass. Called on the host, in the stream's order.
  template <class KVStoreT>
  static void compute(const pass& p) {
    auto& kv = *static_cast<detail::host_rows<KVStoreT>*>(p.kv);
    state& s = *p.self;
    write_batch(p, kv);
    const auto logits = checked_forward(s.backend, kv.store(), s.batch.view());
    const detail::batch_copy_view from = s.copy.view();
    float* to = s.host_logits.data();
    for (std::int32_t o = 0; o < p.n_outputs; ++o, to += s.backend.vocab_size()) {
      const std::int32_t row = from.outputs[o];
      if (row < 0 || s.row_of[static_cast<std::size_t>(row)] < 0) {
        std::fill_n(to, s.backend.vocab_size(), 0.0F);
        continue;
      }
      const auto* logit = logits.at(s.output_of[static_cast<std::size_t>(row)]);
      std::transform(logit, logit + logits.vocab, to, [](auto x) { return static_cast<float>(x); });
    }
  }

  // Writes the batch for the host's backend, without padding rows. Gives each of its sequences the committed rows and
  // scratch slots in the host's cache that the pass needs.
  template <class RowsT>
  static void write_batch(const pass& p, RowsT& kv) {
    state& s = *p.self;
    const detail::batch_copy_view from = s.copy.view();
    std::fill(s.wanted.begin(), s.wanted.end(), char{0});
    for (std::int32_t o = 0; o < p.n_outputs; ++o) {
      if (from.outputs[o] >= 0) s.wanted[static_cast<std::size_t>(from.outputs[o])] = 1;
    }
    std::fill(s.row_of.begin(), s.row_of.end(), -1);
    s.batch.clear();
    std::int32_t n_outputs = 0;
    for (std::int32_t q = 0; q < p.n_sequences; ++q) {
      const batch_sequence& sequence = from.sequences[q];
      std::int32_t end = sequence.prefix;
      bool begun = false;
      for (std::int32_t row = sequence.row_begin; row < sequence.row_end; ++row) {
        if (from.sequence_of[row] != q || from.slots[row] < 0) continue;
        if (!begun) s.batch.begin_sequence(sequence.sequence, sequence.prefix, s.max_columns);
        begun = true;
        add_row(s, from, sequence, row, n_outputs);
        end = (std::max)(end, from.slots[row] + 1);
      }
      if (begun) kv.prepare(sequence.sequence, sequence.prefix, end);
    }
  }

  static void add_row(state& s, const detail::batch_copy_view& from, const batch_sequence& sequence, std::int32_t row,
                      std::int32_t& n_outputs) {
    const auto r = static_cast<std::size_t>(row);
    const std::int32_t column = from.slots[row] - sequence.prefix;
    if (from.too_wide[row] != 0 || column < 0 || column >= s.max_columns) {
      raise<input_error>("row ", row, " of a batch sees scratch slots beyond ", s.max_columns,
                         ", for which the copies were built (option max_columns).");
    }
    s.row_of[r] = s.batch.n_rows();
    if (s.wanted[r] != 0) s.output_of[r] = n_outputs++;
    const mask_row mask = s.batch.add_row(from.tokens[row], from.positions[row], column, s.wanted[r] != 0);
    mask.include({from.mask + static_cast<std::ptrdiff_t>(row) * from.words, from.words});
  }

  std::unique_ptr<state> state_;
};

template <class BackendT>
on_host(BackendT&&) -> on_host<BackendT>;
template <class BackendT>
on_host(BackendT&&, on_host_options) -> on_host<BackendT>;

}  // namespace espalier::cuda
