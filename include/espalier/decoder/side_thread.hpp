// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <atomic>
#include <thread>

#if !defined(__cpp_lib_atomic_wait)
#error "ahead.hpp needs threads, and this C++ library has none"
#endif

namespace espalier::detail {

// A thread that runs one task at a time, beside the one that gives it.
//
// Complexity  start: no allocation after the first
class side_thread {
 public:
  side_thread() = default;
  side_thread(const side_thread&) = delete;
  side_thread& operator=(const side_thread&) = delete;
  ~side_thread() {
    if (!thread_.joinable()) return;
    wait();
    tell(state::ended);
    thread_.join();
  }

  // Has task.run() called there. Errors: std::system_error where there can be no thread; then nothing has begun.
  // Pre: it throws nothing and stays until wait(); no task is under way.
  template <class TaskT>
  void start(TaskT& task) {
    task_ = &task;
    call_ = [](void* given) { static_cast<TaskT*>(given)->run(); };
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
    tell(state::works);
  }

  // Until the task has returned.
  void wait() { state_.wait(state::works, std::memory_order_acquire); }

 private:
  enum class state : int { rests, works, ended };

  void tell(state now) {
    state_.store(now, std::memory_order_release);
    state_.notify_all();
  }

  void work() {
    for (;;) {
      state_.wait(state::rests, std::memory_order_acquire);
      if (state_.load(std::memory_order_acquire) == state::ended) return;
      call_(task_);
      tell(state::rests);
    }
  }

  std::atomic<state> state_{state::rests};
  void* task_ = nullptr;
  void (*call_)(void*) = nullptr;
  std::thread thread_;
};

}  // namespace espalier::detail
