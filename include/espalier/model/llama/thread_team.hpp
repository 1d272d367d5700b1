// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"

namespace espalier {

//! A fixed set of threads that run one function together, the calling thread being one of them.
//!
//! Between runs the other threads spin for a fifth of a millisecond, in case the next run follows at once, and then
//! sleep.
//!
//! Complexity  run: no allocation; if the others still spin, one atomic operation for each thread
//! Errors      option_error if the number of threads is not between 1 and most_threads
class thread_team {
 public:
  static constexpr int most_threads = 256;

  explicit thread_team(int n_threads) : n_threads_(n_threads) {
    require_option("threads", n_threads, 1, most_threads);
    for (int i = 1; i < n_threads; ++i) {
      workers_.emplace_back([this, i] { work(i); });
    }
  }

  ~thread_team() {
    task_ = nullptr;
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    for (std::thread& worker : workers_)
      worker.join();
  }

  thread_team(const thread_team&) = delete;
  thread_team& operator=(const thread_team&) = delete;

  //! Returns the team of `n_threads` that the whole process shares, until it ends. A target and a draft model that take
  //! turns then use the same threads, and neither keeps processors busy with waiting for its next turn. Models that
  //! compute at the same time ask with different values of `apart`.
  static thread_team& shared(int n_threads, bool apart = false) {
    static std::mutex guard;
    static std::map<std::pair<int, bool>, std::unique_ptr<thread_team>> teams;
    const std::lock_guard lock(guard);
    std::unique_ptr<thread_team>& team = teams[{n_threads, apart}];
    if (!team) team = std::make_unique<thread_team>(n_threads);
    return *team;
  }

  //! Returns one thread for each processor, most_threads at most.
  static int of_processors() {
    return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, most_threads);
  }

  int n_threads() const { return n_threads_; }

  //! Returns the part [first, second) of n that belongs to a thread, in whole granules.
  std::pair<int, int> share(int thread, int n, int granule = 1) const {
    const std::int64_t parts = (n + granule - 1) / granule;
    const auto bound = [&](std::int64_t t) {
      return (std::min)(n, static_cast<int>(parts * t / n_threads_) * granule);
    };
    return {bound(thread), bound(thread + 1)};
  }

  //! Calls function(thread) once for each thread in [0, n_threads) and returns when all calls have ended. The function
  //! must not throw. Runs from several callers happen one after another.
  template <class FunctionT>
  void run(FunctionT&& function) {
    const std::lock_guard lock(one_run_);
    if (n_threads_ == 1) return function(0);
    using function_type = std::remove_reference_t<FunctionT>;
    context_ = &function;
    task_ = [](void* context, int thread) { (*static_cast<function_type*>(context))(thread); };
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    function(0);
    barrier();
  }

  //! Waits, within a run, until every thread is here.
  void barrier() {
    if (n_threads_ == 1) return;
    const unsigned phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
      // If there are more threads than processors, the thread waited for may need this thread's processor.
      spins < 2048 ? pause() : std::this_thread::yield();
    }
  }

  //! Returns 0, 1, 2, ...: each number once, to the thread that asks first. For work that threads take as they get
  //! free.
  int next_ticket() { return next_ticket_.fetch_add(1, std::memory_order_relaxed); }

  //! Lets the tickets start again at 0. Pre: all threads have waited for one another since the last ticket, and will do
  //! so before the next one
  void reset_tickets() { next_ticket_.store(0, std::memory_order_relaxed); }

 private:
  static void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  void work(int thread) {
    for (unsigned epoch = 0;;) {
      wait_beyond(epoch);
      ++epoch;
      if (task_ == nullptr) return;
      task_(context_, thread);
      barrier();
    }
  }

  void wait_beyond(unsigned epoch) const {
    using clock = std::chrono::steady_clock;
    const clock::time_point sleep_at = clock::now() + std::chrono::microseconds(200);
    while (epoch_.load(std::memory_order_acquire) == epoch) {
      for (int i = 0; i < 64 && epoch_.load(std::memory_order_relaxed) == epoch; ++i)
        pause();
      if (clock::now() > sleep_at) epoch_.wait(epoch, std::memory_order_acquire);
    }
  }

  const int n_threads_;
  std::mutex one_run_;
  void (*task_)(void* context, int thread) = [](void*, int) {};
  void* context_ = nullptr;
  alignas(64) std::atomic<unsigned> epoch_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
  alignas(64) std::atomic<int> next_ticket_{0};
  std::vector<std::thread> workers_;
};

}  // namespace espalier
