// SPDX-License-Identifier: BSL-1.0
// Tested by tests/embedded/static_decoder.cpp
#pragma once

#include <cstddef>

#include "espalier/config.hpp"
#include "espalier/core/static/list.hpp"

#if ESPALIER_HOSTED
#include <memory>
#endif

namespace espalier::detail {

// Room for numbers that are not initialised. Where the operating system provides pages when they are first written,
// only the pages in use cost memory.
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
  unset_numbers(unset_numbers&&) = default;  // moves but does not copy, as the form with a heap
  unset_numbers& operator=(unset_numbers&&) = default;

  void resize(std::size_t n) {
    numbers_.reserve(n);
  }
  NumberT* get() const {
    return numbers_.data();
  }

 private:
  mutable list<NumberT> numbers_;  // mutable: get() const gives write access, as that of a unique_ptr does
#endif
};

}  // namespace espalier::detail
