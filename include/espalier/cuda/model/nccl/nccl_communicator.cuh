// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/model/parallel/communicator.cuh"
#include "espalier/cuda/model/parallel/pass_marks.cuh"
#include "espalier/model/parallel/communicator.hpp"

namespace espalier::cuda {

struct nccl_options {
  double timeout = 30.0;  //!< seconds after which a pass, or a call of NCCL, that has not ended is an error

  static constexpr void describe(auto see) {
    see(option{"timeout", &nccl_options::timeout, "seconds that ranks wait for one another", 0.01, 1e6});
  }
};

//! A communicator of ranks with a GPU each, over NCCL. Its exchanges are enqueued in the caller's stream.
//!
//! The constructor uses `ranks`, a communicator of the host such as mpi_communicator, once: to share NCCL's id. The
//! caller may go on using it, for example for the class `agreement`. A thread watches: if a pass takes longer than
//! the timeout, or NCCL says that something went wrong, it aborts NCCL's communicator. Then streams go on, but their
//! results are not valid, and new ranks are needed. NCCL does not say which rank is gone.
//!
//! Complexity  all_gather: one ncclAllGather; all_to_all: one group of ncclSend and ncclRecv, this rank's own block
//!             among them; for each pass two further small kernels, which mark its begin and its end. NCCL connects the
//!             ranks in the constructor. On the host a call polls until NCCL has enqueued it
//! Errors      rank_error that names the call, within the timeout, on each rank that is alive; option_error; cuda_error
//! Pre         no other rank uses the present device; one thread makes calls; before this object is destroyed, all
//!             enqueued work has ended, and graphs that hold calls have been destroyed
class nccl_communicator {
 public:
  template <espalier::Communicator RanksT>
  explicit nccl_communicator(RanksT& ranks, const nccl_options& options = {})
      : timeout_(require_options(options).timeout), rank_(ranks.rank()), size_(ranks.size()) {
    const ncclUniqueId id = common_id(ranks);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    abort_guard guard{*this};
    settle(ncclCommInitRankConfig(&comm_, size_, id, rank_, &config), "ncclCommInitRankConfig");
    connect();
    watched_ = true;
    watcher_ = std::thread([this] { watch(); });
  }

  nccl_communicator(const nccl_communicator&) = delete;
  nccl_communicator& operator=(const nccl_communicator&) = delete;
  ~nccl_communicator() {
    {
      const std::lock_guard lock(mutex_);
      leaves_ = true;
    }
    wakes_.notify_all();
    watcher_.join();
    close();
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  //! True if a call has failed, or a pass has taken too long.
  bool broken() const { return marks_.broken(); }

  void begin_pass(cudaStream_t stream) { marks_.begin(stream); }
  void end_pass(void* rows, std::size_t bytes, cudaStream_t stream) { marks_.end(rows, bytes, stream); }

  void all_gather(void* data, std::size_t bytes, cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    gather(data, bytes, stream);
  }
  void all_to_all(const void* from, void* to, std::size_t bytes, cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    exchange(from, to, bytes, stream);
  }

  void raise_failure() {
    const std::lock_guard lock(mutex_);
    raise_said();
  }

 private:
  using clock = std::chrono::steady_clock;

  // Aborts NCCL's communicator if the constructor fails.
  struct abort_guard {
    nccl_communicator& self;
    ~abort_guard() {
      if (!self.watched_) self.abort();
    }
  };

  template <class RanksT>
  static ncclUniqueId common_id(RanksT& ranks) {
    ncclUniqueId id{};
    ncclResult_t status = ncclSuccess;
    if (ranks.rank() == 0) status = ncclGetUniqueId(&id);
    std::vector<std::size_t> counts(static_cast<std::size_t>(ranks.size()), 0);
    counts.front() = sizeof id;
    if (ranks.size() > 1) ranks.all_gather(reinterpret_cast<std::byte*>(&id), counts);
    if (status != ncclSuccess) raise<rank_error>("ncclGetUniqueId failed: ", ncclGetErrorString(status), ".");
    return id;
  }

  // Makes one call of each kind and waits for it. NCCL opens connections in the first call of a kind, and no capture
  // should see that.
  void connect() {
    const auto n = static_cast<std::size_t>(size_);
    const auto sent = device_array<unsigned char>::filled(256 * n, 0);
    const device_array<unsigned char> received(256 * n);
    gather(sent.data(), 256, nullptr);
    pass("ncclAllGather");
    exchange(sent.data(), received.data(), 256, nullptr);
    pass("ncclSend");
  }
  void pass(const char* call) {
    const clock::time_point end = after(timeout_);
    cudaError_t status = cudaErrorNotReady;
    while ((status = cudaStreamQuery(nullptr)) == cudaErrorNotReady) {
      if (clock::now() > end) fail(call, "did not end in time");
      std::this_thread::yield();
    }
    require(status, "cudaStreamQuery");
  }

  void gather(void* data, std::size_t bytes, cudaStream_t stream) {
    raise_said();
    const auto* own = static_cast<const unsigned char*>(data) + static_cast<std::size_t>(rank_) * bytes;
    settle(ncclAllGather(own, data, bytes, ncclInt8, comm_, stream), "ncclAllGather");
  }

  void exchange(const void* from, void* to, std::size_t bytes, cudaStream_t stream) {
    raise_said();
    settle(ncclGroupStart(), "ncclGroupStart");
    // A group that was begun must end before anything is raised: groups belong to the thread, not to the communicator.
    const auto failed = [](ncclResult_t status) { return status != ncclSuccess && status != ncclInProgress; };
    ncclResult_t sent = ncclSuccess, received = ncclSuccess;
    for (int r = 0; r < size_ && !failed(sent) && !failed(received); ++r) {
      const std::size_t at = static_cast<std::size_t>(r) * bytes;
      sent = ncclSend(static_cast<const unsigned char*>(from) + at, bytes, ncclInt8, r, comm_, stream);
      received = ncclRecv(static_cast<unsigned char*>(to) + at, bytes, ncclInt8, r, comm_, stream);
    }
    const ncclResult_t ended = ncclGroupEnd();
    if (failed(sent)) settle(sent, "ncclSend");
    if (failed(received)) settle(received, "ncclRecv");
    settle(ended, "ncclGroupEnd");
  }

  static clock::time_point after(double seconds) {
    return clock::now() + std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(seconds));
  }

  // Waits until NCCL has done its work on the host for a call. Raises rank_error if the call fails or takes too long.
  void settle(ncclResult_t status, const char* call) {
    const clock::time_point end = after(timeout_);
    while (status == ncclInProgress) {
      if (clock::now() > end) fail(call, "did not end in time");
      std::this_thread::yield();
      if (ncclCommGetAsyncError(comm_, &status) != ncclSuccess) status = ncclInternalError;
    }
    if (status != ncclSuccess) fail(call, std::string("failed: ") + ncclGetErrorString(status));
  }

  [[noreturn]] void fail(const char* call, const std::string& what) {
    break_off(std::string(call) + " " + what);
    raise<rank_error>(said_);
  }

  void raise_said() const {
    if (marks_.broken()) raise<rank_error>(said_);
  }

  // Sets said_ and has NCCL's communicator aborted. The watching thread aborts it, since ncclCommAbort may wait until
  // graphs are gone. Before that thread exists there are no graphs, and this function calls ncclCommAbort itself.
  void break_off(const std::string& what) {
    said_ = what + ", says rank " + std::to_string(rank_) +
            ": a rank is dead or late. The text goes on from its last committed token with new ranks.";
    marks_.break_off();
    watched_ ? wakes_.notify_all() : abort();
  }

  void abort() {
    if (comm_ != nullptr) (void)ncclCommAbort(std::exchange(comm_, nullptr));
  }

  void watch() {
    const auto interval = std::chrono::duration<double>((std::min)(timeout_ / 8, 0.02));
    std::unique_lock lock(mutex_);
    std::uint32_t ended = marks_.n_ended();
    clock::time_point end = after(timeout_);
    while (!wakes_.wait_for(lock, interval, [&] { return leaves_ || marks_.broken(); })) {
      if (const std::uint32_t now = marks_.n_ended(); now != ended || !marks_.under_way())
        ended = now, end = after(timeout_);
      ncclResult_t status = ncclSuccess;
      if (ncclCommGetAsyncError(comm_, &status) != ncclSuccess) status = ncclInternalError;
      if (status != ncclSuccess && status != ncclInProgress) {
        break_off(std::string("ncclCommGetAsyncError tells of a failure: ") + ncclGetErrorString(status));
      } else if (clock::now() > end) {
        break_off("a pass did not end in time, and ncclCommAbort ended it");
      }
    }
    if (!marks_.broken()) return;
    ncclComm_t aborted = std::exchange(comm_, nullptr);
    lock.unlock();
    (void)ncclCommAbort(aborted);
  }

  // Destroys NCCL's communicator once NCCL has finished what it began; aborts it if that fails or takes longer than the
  // timeout.
  void close() {
    if (comm_ == nullptr) return;
    const clock::time_point end = after(timeout_);
    ncclResult_t status = ncclCommFinalize(comm_);
    while (status == ncclInProgress && clock::now() < end) {
      std::this_thread::yield();
      if (ncclCommGetAsyncError(comm_, &status) != ncclSuccess) status = ncclInternalError;
    }
    (void)(status == ncclSuccess ? ncclCommDestroy(comm_) : ncclCommAbort(comm_));
  }

  double timeout_;
  int rank_, size_;
  detail::pass_marks marks_;
  std::mutex mutex_;  // guards comm_, said_, watched_ and leaves_
  ncclComm_t comm_ = nullptr;
  std::string said_;
  bool watched_ = false, leaves_ = false;
  std::condition_variable wakes_;
  std::thread watcher_;
};

static_assert(Communicator<nccl_communicator>);

}  // namespace espalier::cuda
