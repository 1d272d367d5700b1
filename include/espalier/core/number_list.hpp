// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <span>

#include "espalier/core/error.hpp"

namespace espalier {

namespace detail {

template <class ListT>
concept LendsNumbers = requires(const ListT& list) {
  { std::data(list) } -> std::convertible_to<const double*>;
  std::size(list);
};

}  // namespace detail

//! A list of at most 64 numbers, as the value of an option. What the numbers may be is checked by the part that has the
//! option.
//!
//! Errors      option_error for more than 64 numbers
class number_list {
 public:
  static constexpr std::size_t most = 64;

  constexpr number_list() = default;
  constexpr number_list(std::initializer_list<double> numbers) { take({numbers.begin(), numbers.size()}); }
  //! The numbers of a std::vector, a std::array or a span.
  template <detail::LendsNumbers ListT>
  requires(!std::same_as<ListT, number_list>) constexpr number_list(const ListT& list) {
    take({std::data(list), std::size(list)});
  }

  constexpr std::size_t size() const { return size_; }
  constexpr const double* data() const { return numbers_; }
  constexpr const double* begin() const { return numbers_; }
  constexpr const double* end() const { return numbers_ + size_; }

  friend constexpr bool operator==(const number_list& a, const number_list& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  constexpr void take(std::span<const double> numbers) {
    if (numbers.size() > most)
      raise<option_error>("a list of numbers has ", numbers.size(), " of them; it may have ", most, ".");
    size_ = numbers.size();
    std::copy(numbers.begin(), numbers.end(), numbers_);
  }

  double numbers_[most] = {};
  std::size_t size_ = 0;
};

}  // namespace espalier
