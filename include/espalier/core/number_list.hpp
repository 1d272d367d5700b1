// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <type_traits>

#include "espalier/core/error.hpp"

namespace espalier {

//! A list of at most 64 numbers, as the value of an option. What the numbers may be is checked by the part that has the
//! option.
//!
//! Errors      option_error for more than 64 numbers
class number_list {
 public:
  static constexpr std::size_t most = 64;

  constexpr number_list() = default;
  constexpr number_list(std::initializer_list<double> numbers)
      : number_list(std::span(numbers.begin(), numbers.end())) {}
  //! The numbers of a std::vector, a std::array or a span.
  template <class ListT>
  requires(std::convertible_to<const ListT&, std::span<const double>> &&
           !std::same_as<ListT, number_list>) constexpr number_list(const ListT& list) {
    const std::span<const double> numbers = list;
    if (numbers.size() > most)
      raise<option_error>("a list of numbers has ", numbers.size(), " of them; it may have ", most, ".");
    size_ = numbers.size();
    std::copy(numbers.begin(), numbers.end(), numbers_);
  }

  constexpr std::size_t size() const { return size_; }
  constexpr const double* data() const { return numbers_; }
  constexpr const double* begin() const { return numbers_; }
  constexpr const double* end() const { return numbers_ + size_; }

  friend constexpr bool operator==(const number_list& a, const number_list& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  double numbers_[most] = {};
  std::size_t size_ = 0;
};

}  // namespace espalier
