// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/backend/on_host.cu
#pragma once

#include <exception>
#include <mutex>
#include <utility>

#include "espalier/config.hpp"

namespace espalier::cuda {

//! The first failure of functions that a stream calls on the host. It is kept until raise() is called. Any threads may
//! call both functions at once. Without ESPALIER_EXCEPTIONS nothing is caught or kept.
class host_failure {
 public:
  //! Calls function() and returns true, or false if it throws. Keeps the exception if it is the first since raise().
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

  //! Throws the kept exception, if there is one, and forgets it.
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
