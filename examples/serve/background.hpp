// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <future>
#include <thread>
#include <utility>

#if defined(__linux__)
#include <sched.h>
#endif

namespace serve {

//! Makes this thread give way for good: it runs while no thread that writes texts wants its processor. Where the system
//! has no such threads, nothing changes.
inline void give_way() {
#if defined(__linux__)
  const sched_param none{};
  (void)::sched_setscheduler(0, SCHED_IDLE, &none);
#endif
}

//! Returns what function() returns, or throws what it throws, after calling it on a thread of its own that gives way:
//! for work that a client can make long.
template <class FunctionT>
auto in_background(FunctionT&& function) {
  std::packaged_task<decltype(function())()> task(std::forward<FunctionT>(function));
  auto result = task.get_future();
  std::thread thread([&] {
    give_way();
    task();
  });
  thread.join();
  return result.get();
}

}  // namespace serve
