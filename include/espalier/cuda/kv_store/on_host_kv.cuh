// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/backend/on_host.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/host_failure.cuh"
#include "espalier/cuda/core/launch.cuh"

namespace espalier::cuda {

namespace detail {

// A cache on the host that follows what the device commits. prepare() and commit() are called on a thread of the CUDA
// runtime, in the order of the stream.
template <class KVStoreT>
class host_rows {
 public:
  host_rows(KVStoreT&& kv, std::int32_t n_sequences)
      : kv_(std::forward<KVStoreT>(kv)), scratch_(static_cast<std::size_t>(n_sequences)) {
    rows_.resize(static_cast<std::size_t>(kv_.capacity()));
    std::iota(rows_.begin(), rows_.end(), 0);
  }

  std::remove_reference_t<KVStoreT>& store() { return kv_; }

  // Gives the sequence `prefix` committed rows, and scratch slots up to `end` - 1 that can be written. The device makes
  // no commit of rows that stay in the slots where they were written; such rows are committed here.
  //
  // Errors      input_error if the cache has fewer rows than `prefix`, or no room up to `end`
  void prepare(std::int32_t sequence, std::int32_t prefix, std::int32_t end) {
    std::int32_t& scratch = scratch_[static_cast<std::size_t>(sequence)];
    const std::int32_t size = kv_.size(sequence);
    if (prefix > size + scratch) {
      raise<input_error>("a batch goes on after ", prefix, " rows of sequence ", sequence,
                         ", but its cache on the host has ", size + scratch, ".");
    }
    if (prefix != size) {
      if (prefix < size) {
        kv_.truncate(sequence, prefix);
      } else {
        kv_.commit(sequence, std::span(rows_).first(static_cast<std::size_t>(prefix - size)));
      }
      scratch = 0;
    }
    const std::int32_t more = end - prefix - scratch;
    if (more <= 0) return;
    if (kv_.append(sequence, more) < 0) {
      raise<input_error>("a batch writes slot ", end - 1, " of sequence ", sequence,
                         ", but its cache on the host ends at ", kv_.capacity() - 1, ".");
    }
    scratch += more;
  }

  void commit(std::int32_t sequence, std::int32_t base, std::span<const std::int32_t> kept) {
    if (!kept.empty() && base != kv_.size(sequence)) {
      raise<input_error>("rows after ", base, " of sequence ", sequence,
                         " are committed, but its cache on the host has ", kv_.size(sequence), ".");
    }
    kv_.commit(sequence, kept);
    scratch_[static_cast<std::size_t>(sequence)] = 0;
  }

 private:
  KVStoreT kv_;
  std::vector<std::int32_t> scratch_;  // number of slots after the committed rows, by sequence
  std::vector<std::int32_t> rows_;     // 0, 1, 2, ...
};

// The commits of all lanes, in pinned memory. A lane has 3 + capacity words: the sequence (-1 for an empty lane), the
// number of rows that were committed before, the number of kept rows, and then the kept rows.
struct kept_on_host {
  std::int32_t* words;
  std::int32_t capacity;

  ESPALIER_HOST_DEVICE std::int32_t* of(std::int32_t lane) const {
    return words + static_cast<std::ptrdiff_t>(lane) * (3 + capacity);
  }
};

inline constexpr int bring_kept_threads = 128;

// Copies the commits of all lanes; a block works for a lane.
template <class UnusedT = void>
ESPALIER_KERNEL void bring_kept(kept_on_host to, text_batch texts, kept_rows all_kept) {
  const text_in_batch here = texts.here();
  std::int32_t* const words = to.of(here.lane);
  const bool is_there = here.place >= 0;
  const kept_rows kept = all_kept.of(is_there ? here.place : 0);
  const std::int32_t n = !is_there ? 0 : *kept.n < kept.max ? *kept.n : kept.max;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < n; i += bring_kept_threads)
    words[3 + i] = kept.rows[i];
  if (threadIdx.x != 0) return;
  words[0] = is_there ? texts.first_sequence + here.place : -1;
  words[1] = is_there ? *kept.base : 0;
  words[2] = n;
}

}  // namespace detail

//! A cache of the host for rounds on the device whose backend is an on_host. The cache is kept by reference when given
//! as an lvalue, by value otherwise. It must compact.
//!
//! Complexity  commit: one launch and one call on a thread of the CUDA runtime; no synchronisation, no allocation after
//!             the constructor. A graph can capture a commit; this object must outlive the graph
//! Law         KVStore's
//! Errors      option_error for a store that does not compact; input_error for more slots than the capacity, or a
//!             sequence that does not exist. If the host's cache throws in a commit, the next call of ensure() or
//!             commit() throws the exception
template <class KVStoreT>
class on_host_kv {
 public:
  using store_type = std::remove_reference_t<KVStoreT>;

  explicit on_host_kv(KVStoreT&& kv) : on_host_kv(std::forward<KVStoreT>(kv), sequences_of(kv)) {}
  //! Takes the number of sequences, too, for a store without n_sequences(). The constructor above assumes that such a
  //! store holds one sequence.
  on_host_kv(KVStoreT&& kv, std::int32_t n_sequences)
      : state_(std::make_unique<state>(std::forward<KVStoreT>(kv), n_sequences)) {
    if (!state_->rows.store().compacts()) {
      raise<option_error>(
          "the cache on the host only truncates, but rounds on the device compact: build it with "
          "commit_mode::compact.");
    }
  }

  std::int32_t capacity() const { return state_->rows.store().capacity(); }
  std::int32_t n_sequences() const { return static_cast<std::int32_t>(state_->commits.size()); }

  void ensure(std::int32_t sequence, std::int32_t n_slots, cudaStream_t) {
    state_->failure.raise();
    check(sequence);
    if (n_slots > capacity()) {
      raise<input_error>("sequence ", sequence, " needs ", n_slots, " slots, but the cache has ", capacity(), ".");
    }
  }

  void commit(const text_batch& texts, const kept_rows& kept, cudaStream_t stream) {
    state_->failure.raise();
    check(texts.first_sequence + texts.n - 1);
    launch("bring_kept", detail::bring_kept<>, {.grid = texts.lanes(), .threads = detail::bring_kept_threads}, stream,
           state_->kept(), texts, kept);
    require(cudaLaunchHostFunc(stream, &state::commit, &state_->commits[static_cast<std::size_t>(texts.n) - 1]),
            "cudaLaunchHostFunc");
  }

  //! The cache as on_host uses it. Its address stays the same, also when this object is moved.
  detail::host_rows<KVStoreT>& rows() { return state_->rows; }

 private:
  struct state;
  struct commit_call {
    state* self;
    std::int32_t n_lanes;
  };

  struct state {
    state(KVStoreT&& kv, std::int32_t n_sequences)
        : rows(std::forward<KVStoreT>(kv), n_sequences),
          numbers(static_cast<std::size_t>(n_sequences) * (static_cast<std::size_t>(rows.store().capacity()) + 3)) {
      for (std::int32_t n = 1; n <= n_sequences; ++n)
        commits.push_back({this, n});
    }

    detail::kept_on_host kept() const {
      return {numbers.data(), static_cast<std::int32_t>(numbers.size() / commits.size()) - 3};
    }

    static void commit(void* data) {
      const auto& call = *static_cast<const commit_call*>(data);
      state& self = *call.self;
      for (std::int32_t lane = 0; lane < call.n_lanes; ++lane) {
        const std::int32_t* const words = self.kept().of(lane);
        if (words[0] < 0) continue;
        self.failure.guard([&] {
          self.rows.commit(words[0], words[1],
                           std::span<const std::int32_t>(words + 3, static_cast<std::size_t>(words[2])));
        });
      }
    }

    detail::host_rows<KVStoreT> rows;
    pinned_array<std::int32_t> numbers;  // as kept_on_host
    std::vector<commit_call> commits;    // by number of lanes
    host_failure failure;
  };

  static std::int32_t sequences_of(const store_type& kv) {
    if constexpr (requires { kv.n_sequences(); }) return kv.n_sequences();
    return 1;
  }

  void check(std::int32_t sequence) const {
    if (sequence >= 0 && sequence < n_sequences()) return;
    raise<input_error>("sequence ", sequence, " does not exist: the store holds ", n_sequences(), ".");
  }

  std::unique_ptr<state> state_;
};

template <class KVStoreT>
on_host_kv(KVStoreT&&) -> on_host_kv<KVStoreT>;
template <class KVStoreT>
on_host_kv(KVStoreT&&, std::int32_t) -> on_host_kv<KVStoreT>;

}  // namespace espalier::cuda
