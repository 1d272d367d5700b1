// SPDX-License-Identifier: BSL-1.0
// Tested by tests/embedded/static_decoder.cpp
#pragma once

#include <cstddef>
#include <utility>

#include "espalier/config.hpp"
#include "espalier/core/static/list.hpp"

namespace espalier::detail {

// Room for numbers that are not initialised. Where the operating system provides pages when they are first written,
// only the pages in use cost memory.
template <class NumberT>
class unset_numbers {
 public:
#if ESPALIER_HOSTED
  // These members do what unique_ptr's would do, without <memory>, which brings streams that take 0.4 s to parse.
  unset_numbers() = default;
  unset_numbers(unset_numbers&& other) noexcept : numbers_(std::exchange(other.numbers_, nullptr)) {}
  unset_numbers& operator=(unset_numbers&& other) noexcept {
    std::swap(numbers_, other.numbers_);
    return *this;
  }
  ~unset_numbers() {
    delete[] numbers_;
  }

  void resize(std::size_t n) {
    delete[] std::exchange(numbers_, nullptr);
    numbers_ = new NumberT[n];
  }
  NumberT* get() const {
    return numbers_;
  }

 private:
  NumberT* numbers_ = nullptr;
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
  mutable list<NumberT> numbers_;  // mutable: get() const gives write access, as in the form with a heap
#endif
};

}  // namespace espalier::detail
