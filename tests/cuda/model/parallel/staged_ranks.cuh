// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/host_failure.cuh"
#include "espalier/cuda/model/parallel/communicator.cuh"
#include "espalier/cuda/model/parallel/pass_marks.cuh"
#include "espalier/model/parallel/communicator.hpp"

//! Ranks of the host as ranks of devices: blocks go to the host, which exchanges them in the middle of the stream, and
//! come back. So several ranks can share one device.
template <espalier::Communicator RanksT>
class staged_ranks {
 public:
  static constexpr std::size_t most_bytes = std::size_t{1} << 20;  // of a block

  explicit staged_ranks(RanksT& ranks) : ranks_(ranks), sent_(most_bytes * n()), received_(most_bytes * n()) {}

  int rank() const { return ranks_.rank(); }
  int size() const { return ranks_.size(); }
  //! Calls and bytes of a pass that has been enqueued, each byte for each rank that it goes to.
  espalier::rank_traffic enqueued() const { return enqueued_; }

  void begin_pass(cudaStream_t stream) { marks_.begin(stream); }
  void end_pass(void* rows, std::size_t bytes, cudaStream_t stream) { marks_.end(rows, bytes, stream); }
  void all_gather(void* data, std::size_t bytes, cudaStream_t stream) { exchange(data, data, bytes, stream, false); }
  void all_to_all(const void* from, void* to, std::size_t bytes, cudaStream_t stream) {
    exchange(from, to, bytes, stream, true);
  }
  void raise_failure() {
    if (!marks_.broken()) return;
    try {
      failure_.raise();
    } catch (const std::exception& e) {
      said_ = e.what();
    }
    espalier::raise<espalier::rank_error>(said_);
  }
  //! The next call on the host fails.
  void break_next() { breaks_ = true; }

 private:
  // A call, at an address that a graph may keep.
  struct call {
    staged_ranks* self;
    bool to_all;
    std::vector<std::size_t> counts;

    static void run(void* data) {
      auto& c = *static_cast<call*>(data);
      staged_ranks& self = *c.self;
      if (self.marks_.broken()) return;
      const bool done = self.failure_.guard([&] {
        if (self.breaks_) throw espalier::rank_error("this rank is gone.");
        if (c.to_all) {
          self.ranks_.all_to_all(self.sent_.data(), c.counts, self.received_.data(), c.counts);
        } else {
          std::copy_n(self.sent_.data(), c.counts.size() * c.counts.front(), self.received_.data());
          self.ranks_.all_gather(self.received_.data(), c.counts);
        }
      });
      if (!done) self.marks_.break_off();
    }
  };

  std::size_t n() const { return static_cast<std::size_t>(size()); }

  void exchange(const void* from, void* to, std::size_t bytes, cudaStream_t stream, bool to_all) {
    raise_failure();
    if (bytes > most_bytes) espalier::raise<espalier::rank_error>("a block has ", bytes, " bytes.");
    calls_.push_back(std::make_unique<call>(call{this, to_all, std::vector<std::size_t>(n(), bytes)}));
    const auto copy = [&](void* into, const void* out_of, cudaMemcpyKind kind) {
      espalier::cuda::require(cudaMemcpyAsync(into, out_of, bytes * n(), kind, stream), "cudaMemcpyAsync");
    };
    copy(sent_.data(), from, cudaMemcpyDeviceToHost);
    espalier::cuda::require(cudaLaunchHostFunc(stream, &call::run, calls_.back().get()), "cudaLaunchHostFunc");
    copy(to, received_.data(), cudaMemcpyHostToDevice);
    ++enqueued_.calls;
    enqueued_.bytes += static_cast<std::int64_t>(bytes * (n() - 1));
  }

  RanksT& ranks_;
  espalier::cuda::detail::pass_marks marks_;
  espalier::cuda::host_failure failure_;
  std::string said_;
  espalier::cuda::pinned_array<std::byte> sent_, received_;  // [ranks][most_bytes]
  std::vector<std::unique_ptr<call>> calls_;
  espalier::rank_traffic enqueued_;
  bool breaks_ = false;
};
