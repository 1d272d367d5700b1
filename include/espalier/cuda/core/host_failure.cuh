// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <exception>
#include <mutex>
#include <utility>

#include "espalier/config.hpp"

namespace espalier::cuda {

//! What went wrong in a function that a stream calls on the host: kept until someone who can be told asks.
class host_failure {
 public:
  //! Calls function(). False where it threw; the first failure since raise() is kept.
  template <class FunctionT>
  bool guard(FunctionT&& function) noexcept {
#if ESPALIER_EXCEPTIONS
    try {
      function();
      return true;
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!first_) first_ = std::current_exception();
      return false;
    }
#else
    function();
    return true;
#endif
  }

  //! Throws what was kept, once.
  void raise() {
#if ESPALIER_EXCEPTIONS
    std::exception_ptr found;
    {
      const std::lock_guard lock(mutex_);
      found = std::exchange(first_, nullptr);
    }
    if (found) std::rethrow_exception(found);
#endif
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
};

}  // namespace espalier::cuda
