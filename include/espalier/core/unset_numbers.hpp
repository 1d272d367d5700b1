// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>

#include "espalier/config.hpp"
#include "espalier/core/list.hpp"

#if ESPALIER_HOSTED
#include <memory>
#endif

namespace espalier::detail {

// Room for numbers that are not set at first: where pages are taken when they are written, it costs only what is used.
template <class NumberT>
class unset_numbers {
 public:
#if ESPALIER_HOSTED
  void resize(std::size_t n) {
    numbers_.reset(new NumberT[n]);
  }
  NumberT* get() const {
    return numbers_.get();
  }

 private:
  std::unique_ptr<NumberT[]> numbers_;
#else
  unset_numbers() = default;
  unset_numbers(unset_numbers&&) = default;  // and no copy, as where there is a heap
  unset_numbers& operator=(unset_numbers&&) = default;

  void resize(std::size_t n) {
    numbers_.reserve(n);
  }
  NumberT* get() const {
    return numbers_.data();
  }

 private:
  mutable list<NumberT> numbers_;  // what it owns may be changed where it may not
#endif
};

}  // namespace espalier::detail
